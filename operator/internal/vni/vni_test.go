package vni

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// errCrashed is what every call of an actor returns once that has crashed.
var errCrashed = errors.New("crashed")

const (
	quarantine = 30 * time.Second
	owners     = 12
)

// object is an allocation as the API server keeps it.
type object struct {
	Allocation
	version    int
	users      map[int]bool // nodes that have not confirmed the release
	releasedAt time.Time
}

// tenant is an owner as the API server keeps it. A deleted one comes back under another identity.
type tenant struct {
	name     string
	life     int
	version  int
	recorded []int32
	count    int
	deleting bool
}

// world is an API server that keeps names unique and refuses writes of what has changed since it was read, with a clock and a
// fabric that remembers who used each number, and until when.
type world struct {
	t           *testing.T
	random      *rand.Rand
	now         time.Time
	space       Space
	objects     map[int32]*object
	tenants     []*tenant
	lastUser    map[int32]string
	lastUse     map[int32]time.Time
	allocations int
	releases    int
	crashes     int
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{
		t: t, random: rand.New(rand.NewPCG(seed, 1)), now: time.Date(2026, 1, 1, 0, 0, 0, 1, time.UTC),
		space:   Space{First: 100, Last: 123, Excluded: map[int32]bool{100: true, 107: true, 110: true}},
		objects: map[int32]*object{}, lastUser: map[int32]string{}, lastUse: map[int32]time.Time{},
	}
	for index := range owners {
		w.tenants = append(w.tenants, newTenant(index, 0))
	}
	return w
}

func newTenant(index, life int) *tenant {
	return &tenant{name: fmt.Sprintf("%d/%d", index, life), life: life, count: 1}
}

// actor is one of the operators that race. Each of its calls can be the last, before or after it took effect.
type actor struct {
	*world
	yield func(struct{}) bool
}

// call makes one call of the API server. Others work before and after it.
func (a *actor) call(effect func() error) error {
	if !a.yield(struct{}{}) {
		return errCrashed
	}
	err := effect()
	if !a.yield(struct{}{}) {
		return errCrashed
	}
	return err
}

// List implements Store.
func (a *actor) List(context.Context) (all []Allocation, err error) {
	err = a.call(func() error {
		all = a.list()
		return nil
	})
	return all, err
}

func (w *world) list() []Allocation {
	all := make([]Allocation, 0, len(w.objects))
	for _, o := range w.objects {
		all = append(all, o.Allocation)
	}
	return all
}

// Create implements Store.
func (a *actor) Create(_ context.Context, made Allocation) error {
	return a.call(func() error {
		if a.objects[made.Number] != nil {
			return ErrTaken
		}
		if a.space.Excluded[made.Number] || made.Number < a.space.First || made.Number > a.space.Last {
			a.t.Errorf("number %d is not to be given away", made.Number)
		}
		if used, ok := a.lastUse[made.Number]; ok && a.now.Sub(used) < quarantine {
			a.t.Errorf("number %d is given away %s after its last use", made.Number, a.now.Sub(used))
		}
		a.allocations++
		a.objects[made.Number] = &object{Allocation: made, users: map[int]bool{}}
		return nil
	})
}

// allocate is what the controller of tenants does with one.
func (a *actor) allocate(index int) error {
	var seen tenant
	if err := a.call(func() error { seen = *a.tenants[index]; return nil }); err != nil {
		return err
	}
	owner := seen.name
	if seen.deleting {
		return a.releaseAll(index, seen, owner)
	}
	numbers, err := Ensure(context.Background(), a, a.space, owner, seen.recorded, seen.count)
	var none *ExhaustedError
	if err != nil && !errors.As(err, &none) {
		return err
	}
	if !slices.Equal(numbers, seen.recorded) {
		return a.call(func() error {
			now := a.tenants[index]
			if now.life == seen.life && now.version == seen.version {
				now.version++
				now.recorded = numbers
			}
			return nil
		})
	}
	all, err := a.List(context.Background())
	if err != nil {
		return err
	}
	var now tenant
	if err := a.call(func() error { now = *a.tenants[index]; return nil }); err != nil || now.name != owner {
		return err
	}
	return a.release(Surplus(all, owner, now.recorded, now.count))
}

// releaseAll releases every number of an owner that goes.
func (a *actor) releaseAll(index int, seen tenant, owner string) error {
	all, err := a.List(context.Background())
	if err != nil {
		return err
	}
	if err := a.release(held(all, owner, nil)); err != nil {
		return err
	}
	return a.call(func() error {
		now := a.tenants[index]
		if now.life == seen.life && now.version == seen.version {
			a.tenants[index] = newTenant(index, now.life+1)
		}
		return nil
	})
}

func (a *actor) release(numbers []int32) error {
	for _, number := range numbers {
		err := a.call(func() error {
			if o := a.objects[number]; o != nil && !o.Releasing {
				o.Releasing = true
				o.version++
				a.releases++
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// finalize is what the controller of allocations does with one.
func (a *actor) finalize(number int32) error {
	var seen *object
	var orphan bool
	err := a.call(func() error {
		if o := a.objects[number]; o != nil {
			copied := *o
			seen = &copied
			orphan = !slices.ContainsFunc(a.tenants, func(owner *tenant) bool { return owner.name == o.Owner })
		}
		return nil
	})
	if err != nil || seen == nil {
		return err
	}
	if !seen.Releasing {
		if orphan {
			return a.release([]int32{number})
		}
		return nil
	}
	write := func(change func(*object)) error {
		return a.call(func() error {
			if o := a.objects[number]; o != nil && o.Owner == seen.Owner && o.version == seen.version {
				o.version++
				change(o)
			}
			return nil
		})
	}
	now := a.now // others move the clock on until the write
	switch {
	case seen.releasedAt.IsZero() && len(seen.users) == 0:
		return write(func(o *object) {
			if len(o.users) == 0 {
				o.releasedAt = ReleasedAt(now)
			}
		})
	case !seen.releasedAt.IsZero() && Rest(seen.releasedAt, quarantine, now) <= 0:
		return write(func(*object) { delete(a.objects, number) })
	default:
		return nil
	}
}

// live lets time pass, tenants come, grow and go, and nodes use and release numbers.
func (w *world) live() {
	w.now = w.now.Add(time.Duration(w.random.Int64N(int64(2 * time.Second))))
	index := w.random.IntN(owners)
	owner := w.tenants[index]
	switch w.random.IntN(6) {
	case 0:
		owner.deleting = true
		owner.version++
	case 1:
		owner.count = min(owner.count+w.random.IntN(2), 4)
		owner.version++
	case 2, 3:
		for _, number := range owner.recorded {
			w.use(number, owner.name)
		}
	default:
		w.confirm()
	}
}

// use has a node use a number that its owner has recorded. The node lists itself first, which fails on one that goes.
func (w *world) use(number int32, owner string) {
	o := w.objects[number]
	if o == nil || o.Releasing || o.Owner != owner {
		return
	}
	if before := w.lastUser[number]; before != owner && before != "" && w.now.Sub(w.lastUse[number]) < quarantine {
		w.t.Errorf("number %d is used by %s %s after its use by %s", number, owner, w.now.Sub(w.lastUse[number]), before)
	}
	o.users[w.random.IntN(3)] = true
	o.version++
	w.lastUser[number], w.lastUse[number] = owner, w.now
}

// confirm has nodes release numbers that go. They use them until then.
func (w *world) confirm() {
	for number, o := range w.objects {
		for node := range o.users {
			w.lastUse[number] = w.now
			if o.Releasing && w.random.IntN(2) == 0 {
				delete(o.users, node)
				o.version++
			}
		}
	}
}

// check holds what must be true at every moment: what an owner has recorded is allocated, to that owner.
func (w *world) check() {
	for _, owner := range w.tenants {
		if owner.deleting {
			continue // its numbers are on their way back
		}
		for _, number := range owner.recorded {
			if o := w.objects[number]; o == nil || o.Owner != owner.name {
				w.t.Errorf("%s has recorded number %d, whose allocation is %+v", owner.name, number, o)
			}
		}
	}
}

// start begins a piece of work of one operator.
func (w *world) start() (next func() (struct{}, bool), stop func()) {
	work := func(yield func(struct{}) bool) {
		a := &actor{world: w, yield: yield}
		var err error
		if w.random.IntN(2) == 0 {
			err = a.allocate(w.random.IntN(owners))
		} else {
			err = a.finalize(w.space.First + w.random.Int32N(w.space.Last-w.space.First+1))
		}
		if err != nil && !errors.Is(err, errCrashed) {
			w.t.Errorf("work: %v", err)
		}
	}
	return iter.Pull(iter.Seq[struct{}](work))
}

// race lets two operators work at a time, until numbers were allocated that often. One of them crashes now and then.
func (w *world) race(allocations int) {
	next, stop := make([]func() (struct{}, bool), 2), make([]func(), 2)
	for i := range next {
		next[i], stop[i] = w.start()
	}
	for step := 0; w.allocations < allocations && !w.t.Failed(); step++ {
		i := w.random.IntN(len(next))
		_, more := next[i]()
		if more && w.random.IntN(40) == 0 {
			stop[i]()
			more = false
			w.crashes++
		}
		if !more {
			next[i], stop[i] = w.start()
		}
		if step%8 == 0 {
			w.live()
			w.check()
		}
	}
	for i := range stop {
		stop[i]()
	}
}

func TestRacingAllocatorsNeverShareANumberAndNeverReuseOneEarly(t *testing.T) {
	t.Parallel()
	allocations := 100_000
	if asked := os.Getenv("WEIR_VNI_ALLOCATIONS"); asked != "" {
		var err error
		if allocations, err = strconv.Atoi(asked); err != nil {
			t.Fatalf("WEIR_VNI_ALLOCATIONS: %v", err)
		}
	}
	w := newWorld(t, 34)
	w.race(allocations)
	if w.allocations < allocations || w.releases < allocations*9/10 || w.crashes < allocations/20 {
		t.Errorf("%d allocations, %d releases, %d crashes: the test did not try what it is for", w.allocations, w.releases, w.crashes)
	}
}

func TestACrashAfterCreationKeepsTheNumberForItsOwner(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	calls := 0
	a := &actor{world: w, yield: func(struct{}) bool { calls++; return calls < 4 }} // list, and create, whose answer is lost
	if _, err := Ensure(t.Context(), a, w.space, "a", nil, 1); !errors.Is(err, errCrashed) {
		t.Fatalf("error %v", err)
	}
	a.yield = func(struct{}) bool { return true }
	numbers, err := Ensure(t.Context(), a, w.space, "a", nil, 2)
	if err != nil || !slices.Equal(numbers, []int32{101, 102}) || len(w.objects) != 2 {
		t.Errorf("numbers %v, %v, %d allocations", numbers, err, len(w.objects))
	}
}

func TestAnExhaustedSpaceSaysWhatIsOnItsWayBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.space = Space{First: 100, Last: 103, Excluded: map[int32]bool{100: true, 200: true}}
	w.objects[101] = &object{Allocation: Allocation{Number: 101, Owner: "b", Releasing: true}}
	a := &actor{world: w, yield: func(struct{}) bool { return true }}
	numbers, err := Ensure(t.Context(), a, w.space, "a", nil, 3)
	var none *ExhaustedError
	if !errors.As(err, &none) || none.Have != 2 || none.Want != 3 || none.Releasing != 1 || none.Allocated != 3 || len(numbers) != 2 {
		t.Errorf("numbers %v, error %+v", numbers, err)
	}
	if err == nil || !strings.Contains(err.Error(), "2 of 3") {
		t.Errorf("error %v", err)
	}
	if size := w.space.Size(); size != 3 {
		t.Errorf("size %d", size)
	}
}

func TestASurplusGoesOnlyOnceTheOwnerHasRecordedEnough(t *testing.T) {
	t.Parallel()
	all := []Allocation{{Number: 2, Owner: "a"}, {Number: 1, Owner: "a"}, {Number: 3, Owner: "b"}, {Number: 4, Owner: "a", Releasing: true}}
	if got := Surplus(all, "a", nil, 1); got != nil {
		t.Errorf("before anything is recorded: %v", got)
	}
	if got := Surplus(all, "a", []int32{2}, 1); !slices.Equal(got, []int32{1}) {
		t.Errorf("with 2 recorded: %v", got)
	}
	if got := Surplus(all, "a", []int32{4}, 1); got != nil {
		t.Errorf("with a number recorded that is going: %v", got)
	}
}

func TestAReleaseIsNeverNotedEarly(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 1, time.UTC)
	if rest := Rest(ReleasedAt(now), quarantine, now.Add(quarantine)); rest <= 0 {
		t.Errorf("rest %s after the quarantine to the nanosecond", rest)
	}
	whole := now.Truncate(time.Second)
	if !ReleasedAt(whole).Equal(whole) {
		t.Errorf("a whole second becomes %s", ReleasedAt(whole))
	}
}
