package dial

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	managementv1 "weir.dev/weir/engine/proto/management/v1"
)

// DER is a positive DER error number, as engines and clients share them. 0 means none was given.
type DER uint32

// The DER numbers that management callers tell apart.
const (
	DERNoPermission DER = 1001
	DERInvalid      DER = 1003
	DERExists       DER = 1004
	DERNonexistent  DER = 1005
	DERUnreachable  DER = 1006
	DERNoSpace      DER = 1007
	DERTimedOut     DER = 1011
	DERBusy         DER = 1012
)

// Error is a failed management call.
type Error struct {
	// Code is the gRPC code; Unavailable after every engine was tried.
	Code codes.Code
	// DER is the engine's error number, 0 if no engine gave one.
	DER DER
	// Object is what the error is about, e.g. "pool tank"; may be empty.
	Object string
	// Message says what failed and what to do next.
	Message string
	// Engine is the management address that answered, or was tried last; may be empty.
	Engine string
}

// Error returns the message with the DER number, if there is one.
func (e *Error) Error() string {
	if e.DER != 0 {
		return fmt.Sprintf("%s (DER %d)", e.Message, e.DER)
	}
	return e.Message
}

// GRPCStatus lets gRPC servers pass the error on with its code and detail.
func (e *Error) GRPCStatus() *status.Status {
	passed := status.New(e.Code, e.Error())
	if e.DER == 0 && e.Object == "" {
		return passed
	}
	detailed, err := passed.WithDetails(&managementv1.ErrorDetail{Der: uint32(e.DER), Object: e.Object})
	if err != nil {
		return passed
	}
	return detailed
}

// Is makes errors.Is(err, context.DeadlineExceeded) and context.Canceled hold for the codes of the same name.
func (e *Error) Is(target error) bool {
	switch e.Code {
	case codes.DeadlineExceeded:
		return target == context.DeadlineExceeded
	case codes.Canceled:
		return target == context.Canceled
	default:
		return false
	}
}

// Code returns the gRPC code of a management call's error: OK for nil, Unknown for a foreign error.
func Code(err error) codes.Code {
	if failed, ok := errors.AsType[*Error](err); ok {
		return failed.Code
	}
	return status.Code(err)
}

// asError turns what gRPC returned for a call to the engine at address into an Error.
func asError(address string, err error) *Error {
	answered := status.Convert(err)
	failed := &Error{Code: answered.Code(), Message: answered.Message(), Engine: address}
	for _, detail := range answered.Details() {
		if d, ok := detail.(*managementv1.ErrorDetail); ok {
			failed.DER, failed.Object = DER(d.GetDer()), d.GetObject()
		}
	}
	return failed
}
