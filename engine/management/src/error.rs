//! Management errors: a gRPC status whose detail carries the DER code and the object.

use prost::Message;
use tonic::{Code, Status};
use weir_proto::Der;

use crate::v1::ErrorDetail;

/// Type URL of [`ErrorDetail`] in the details of a status.
const DETAIL_TYPE: &str = "type.googleapis.com/weir.management.v1.ErrorDetail";

/// `google.rpc.Status`, as the `grpc-status-details-bin` trailer holds it.
#[derive(Clone, PartialEq, Message)]
struct RichStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<AnyMessage>,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, Message)]
struct AnyMessage {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// Why a management request failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message} ({der})")]
pub struct Failure {
    /// The code.
    pub der: Der,
    /// The object the failure is about, e.g. "pool tank"; empty when there is none.
    pub object: String,
    /// What failed and what to do next.
    pub message: String,
}

impl Failure {
    /// A failure of `object`.
    #[must_use]
    pub fn new(der: Der, object: impl Into<String>, message: impl Into<String>) -> Self {
        Self { der, object: object.into(), message: message.into() }
    }

    /// The gRPC code that tells a caller how to react.
    #[must_use]
    pub const fn code(&self) -> Code {
        match self.der {
            Der::INVAL | Der::NOTSUPPORTED | Der::OVERFLOW | Der::IO_INVAL => Code::InvalidArgument,
            Der::NONEXIST | Der::ENOENT | Der::CONT_NONEXIST => Code::NotFound,
            Der::EXIST | Der::ID_MISMATCH => Code::AlreadyExists,
            Der::NO_PERM | Der::NO_HDL | Der::OP_NOT_PERMITTED => Code::PermissionDenied,
            Der::NOSPACE | Der::QUOTA_LIMIT | Der::NOMEM | Der::OVERLOAD_RETRY => Code::ResourceExhausted,
            Der::BUSY | Der::NOTAPPLICABLE => Code::FailedPrecondition,
            Der::TIMEDOUT => Code::DeadlineExceeded,
            Der::UNREACH
            | Der::AGAIN
            | Der::NO_SERVICE
            | Der::SHUTDOWN
            | Der::NOTLEADER
            | Der::AGENT_COMM => Code::Unavailable,
            Der::INPROGRESS => Code::Aborted,
            Der::DATA_LOSS | Der::CSUM => Code::DataLoss,
            Der::NOSYS => Code::Unimplemented,
            Der::CANCELED => Code::Cancelled,
            _ => Code::Internal,
        }
    }
}

impl From<Failure> for Status {
    fn from(failure: Failure) -> Self {
        let code = failure.code();
        let detail = ErrorDetail { der: failure.der.0, object: failure.object };
        let rich = RichStatus {
            code: code as i32,
            message: failure.message.clone(),
            details: vec![AnyMessage { type_url: DETAIL_TYPE.to_owned(), value: detail.encode_to_vec() }],
        };
        Self::with_details(code, failure.message, rich.encode_to_vec().into())
    }
}

/// The failure behind a status. One that carries no detail (e.g. from the transport) becomes [`Der::UNREACH`] when
/// the peer could not be asked, else [`Der::MISC`].
#[must_use]
pub fn failure_of(status: &Status) -> Failure {
    let rich = RichStatus::decode(status.details()).ok();
    let detail = rich
        .and_then(|rich| rich.details.into_iter().find(|detail| detail.type_url == DETAIL_TYPE))
        .and_then(|detail| ErrorDetail::decode(detail.value.as_slice()).ok());
    if let Some(detail) = detail {
        return Failure::new(Der(detail.der), detail.object, status.message());
    }
    let der = match status.code() {
        Code::Unavailable => Der::UNREACH,
        Code::DeadlineExceeded => Der::TIMEDOUT,
        Code::Unimplemented => Der::NOSYS,
        Code::InvalidArgument => Der::INVAL,
        _ => Der::MISC,
    };
    Failure::new(der, "", status.message())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_survives_the_trip_through_a_status() {
        let failure = Failure::new(Der::NOSPACE, "pool tank", "pool tank needs 5 bytes more");
        let status = Status::from(failure.clone());
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert_eq!(failure_of(&status), failure);
    }

    #[test]
    fn a_status_without_detail_or_with_a_broken_one_still_says_something() {
        assert_eq!(failure_of(&Status::unavailable("no route")).der, Der::UNREACH);
        let broken = Status::with_details(Code::Internal, "x", vec![0xff, 0xff].into());
        assert_eq!(failure_of(&broken), Failure::new(Der::MISC, "", "x"));
    }
}
