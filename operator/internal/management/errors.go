package management

import (
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	managementv1 "weir.dev/weir/engine/proto/management/v1"
)

// unreachableError says that nobody could be asked.
type unreachableError struct{ cause error }

func (e *unreachableError) Error() string { return e.cause.Error() }

func (e *unreachableError) Unwrap() error { return e.cause }

// IsUnreachable is true for errors that say nothing of the request: no engine answered in time.
func IsUnreachable(err error) bool {
	if _, ok := errors.AsType[*unreachableError](err); ok {
		return true
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return true
	default:
		return false
	}
}

// Unreachable says, for an error for which IsUnreachable is true, who does not answer: every engine of the cluster or, in
// the words of one that does, another one.
func Unreachable(cluster string, err error) string {
	if toldByEngine(err) {
		return Message(err)
	}
	return fmt.Sprintf("no engine of StorageCluster %s answers, see its conditions (%s)", cluster, Message(err))
}

// toldByEngine tells the errors that an engine answered with from those that stand for no answer.
func toldByEngine(err error) bool {
	s, ok := status.FromError(err)
	return ok && slices.ContainsFunc(s.Details(), func(detail any) bool {
		_, is := detail.(*managementv1.ErrorDetail)
		return is
	})
}

// IsNotFound is true when the engines don't know the object.
func IsNotFound(err error) bool { return status.Code(err) == codes.NotFound }

// IsPrecondition is true when something that the message names has to go first.
func IsPrecondition(err error) bool { return status.Code(err) == codes.FailedPrecondition }

// IsRejected is true when asking again without a change of the spec, or of the cluster, gives the same answer.
func IsRejected(err error) bool {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.AlreadyExists, codes.FailedPrecondition, codes.ResourceExhausted,
		codes.OutOfRange, codes.Unimplemented, codes.PermissionDenied, codes.Unauthenticated:
		return true
	default:
		return false
	}
}

// Message is what the engine said, without the wrapping of gRPC.
func Message(err error) string {
	if s, ok := status.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}
