// Package vni decides which owner has which virtual network identifiers (VNIs), and when a released number can be given away
// again. It knows nothing of Kubernetes: a Store keeps the allocations and makes one of each number at most.
package vni

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// ErrTaken is what a Store returns when an allocation of the number is there already.
var ErrTaken = errors.New("the number is allocated already")

// Allocation is a number that somebody has, or that has not been let go yet.
type Allocation struct {
	Number int32
	// Owner is who has the number. It is never used again for another owner.
	Owner string
	// Releasing is true once the release of the number has begun.
	Releasing bool
}

// Space is the numbers that may be given away.
type Space struct {
	// First and Last number, both included.
	First, Last int32
	// Excluded numbers are never given away.
	Excluded map[int32]bool
}

// Size is how many numbers may be given away.
func (s Space) Size() int32 {
	size := s.Last - s.First + 1
	for number, excluded := range s.Excluded {
		if excluded && number >= s.First && number <= s.Last {
			size--
		}
	}
	return size
}

// Store keeps allocations. Several allocators may use one at a time.
type Store interface {
	// List returns every allocation of every owner, those that are being released among them.
	List(ctx context.Context) ([]Allocation, error)
	// Create makes an allocation. It fails with ErrTaken if one of that number is there.
	Create(ctx context.Context, made Allocation) error
}

// ExhaustedError says that a space has no number left to give.
type ExhaustedError struct {
	// Have is how many numbers the owner has, Want how many were asked for.
	Have, Want int
	// Allocated is how many numbers of the space are taken, Releasing how many of those are on their way back.
	Allocated, Releasing int
}

// Error implements error.
func (e *ExhaustedError) Error() string {
	return fmt.Sprintf("no number is left: %d of %d are allocated", e.Have, e.Want)
}

// Ensure gives an owner as many numbers as count and returns them. recorded are the numbers that the owner knows to be its own:
// they come first. Numbers that an attempt before allocated and did not record come next. It fails with an ExhaustedError, and
// returns what the owner has, if the space has too few numbers.
func Ensure(ctx context.Context, store Store, space Space, owner string, recorded []int32, count int) ([]int32, error) {
	all, err := store.List(ctx)
	if err != nil {
		return nil, err
	}
	numbers := held(all, owner, recorded)
	taken := make(map[int32]bool, len(all))
	for _, a := range all {
		taken[a.Number] = true
	}
	for number := space.First; len(numbers) < count && number <= space.Last; number++ {
		if taken[number] || space.Excluded[number] {
			continue
		}
		err := store.Create(ctx, Allocation{Number: number, Owner: owner})
		if errors.Is(err, ErrTaken) {
			taken[number] = true // by another allocator, since the list was read
			continue
		}
		if err != nil {
			return numbers, err
		}
		taken[number] = true
		numbers = append(numbers, number)
	}
	if len(numbers) < count {
		return numbers, exhausted(all, space, taken, len(numbers), count)
	}
	return numbers[:count], nil
}

func exhausted(all []Allocation, space Space, taken map[int32]bool, have, want int) *ExhaustedError {
	e := &ExhaustedError{Have: have, Want: want}
	inside := func(number int32) bool { return number >= space.First && number <= space.Last }
	for number := range taken {
		if inside(number) {
			e.Allocated++
		}
	}
	for _, a := range all {
		if a.Releasing && inside(a.Number) {
			e.Releasing++
		}
	}
	return e
}

// held are the numbers of an owner that are not being released: those recorded first, in their order, then the others.
func held(all []Allocation, owner string, recorded []int32) []int32 {
	var mine []int32
	for _, a := range all {
		if a.Owner == owner && !a.Releasing {
			mine = append(mine, a.Number)
		}
	}
	slices.Sort(mine)
	var numbers []int32
	for _, number := range recorded {
		if _, found := slices.BinarySearch(mine, number); found {
			numbers = append(numbers, number)
		}
	}
	for _, number := range mine {
		if !slices.Contains(recorded, number) {
			numbers = append(numbers, number)
		}
	}
	return numbers
}

// Kept are the recorded numbers that are still the owner's and not being released.
func Kept(all []Allocation, owner string, recorded []int32) []int32 {
	numbers := held(all, owner, recorded)
	return slices.DeleteFunc(numbers, func(number int32) bool { return !slices.Contains(recorded, number) })
}

// Surplus are numbers that were allocated for an owner that has enough without them: two allocators at work for one owner leave
// such. recorded has to be what the owner has recorded by now, not before the list was read.
func Surplus(all []Allocation, owner string, recorded []int32, count int) []int32 {
	if len(Kept(all, owner, recorded)) < count {
		return nil // one of them may be about to be recorded
	}
	return slices.DeleteFunc(held(all, owner, recorded), func(number int32) bool { return slices.Contains(recorded, number) })
}

// ReleasedAt is the time to note for a release found at now: the next whole second, since times are noted in seconds and a
// quarantine must not be shorter than asked for.
func ReleasedAt(now time.Time) time.Time {
	second := now.Truncate(time.Second)
	if second.Before(now) {
		second = second.Add(time.Second)
	}
	return second
}

// Rest is how long a number that was released at a time still rests before it can be given away again; 0 or less means it can.
func Rest(releasedAt time.Time, quarantine time.Duration, now time.Time) time.Duration {
	return releasedAt.Add(quarantine).Sub(now)
}
