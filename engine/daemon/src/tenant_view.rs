//! What a caller may see that reads for one tenant: the tenant's own pools, and what is in them.

use prost::Message;
use weir_management::{Failure, v1};
use weir_proto::TenantId;

use crate::convert;

/// The pool that a request is about; none when it is about no single one.
///
/// # Errors
/// When the request does not decode.
pub fn pool_of(method: &str, request: &[u8]) -> Result<Option<String>, Failure> {
    Ok(Some(match method {
        "Pools/Query" => convert::decode::<v1::PoolQueryRequest>(method, request)?.pool,
        "Containers/List" => convert::decode::<v1::ContainerListRequest>(method, request)?.pool,
        "Containers/Query" => convert::decode::<v1::ContainerQueryRequest>(method, request)?.pool,
        _ => return Ok(None),
    }))
}

/// A request for the owner of a pool, as a call and its encoded request.
pub fn ask_owner(pool: &str) -> (&'static str, Vec<u8>) {
    ("Pools/Query", v1::PoolQueryRequest { pool: pool.to_owned() }.encode_to_vec())
}

/// Whether the pool in the answer to [`ask_owner`] is the tenant's.
pub fn is_owner(tenant: TenantId, answer: &[u8]) -> bool {
    let pool = v1::PoolQueryResponse::decode(answer).ok().and_then(|answer| answer.pool);
    pool.is_some_and(|pool| pool.tenant == tenant.0)
}

/// The answer to a call with what is not the tenant's left out.
///
/// # Errors
/// When a list of pools does not decode.
pub fn restrict(tenant: TenantId, method: &str, answer: Vec<u8>) -> Result<Vec<u8>, Failure> {
    if method != "Pools/List" {
        return Ok(answer);
    }
    let mut list: v1::PoolListResponse = convert::decode(method, &answer)?;
    list.pools.retain(|pool| pool.tenant == tenant.0);
    Ok(list.encode_to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(label: &str, tenant: u64) -> v1::PoolInfo {
        v1::PoolInfo { label: label.to_owned(), tenant, ..v1::PoolInfo::default() }
    }

    #[test]
    fn a_list_shows_the_tenants_own_pools() {
        let all = v1::PoolListResponse { pools: vec![pool("a", 7), pool("b", 8), pool("c", 0)] };
        let shown = restrict(TenantId(7), "Pools/List", all.encode_to_vec()).expect("it decodes");
        let shown = v1::PoolListResponse::decode(shown.as_slice()).expect("it decodes");
        assert_eq!(shown.pools, [pool("a", 7)]);
    }

    #[test]
    fn the_owner_is_who_the_pool_says() {
        let answer = |tenant| v1::PoolQueryResponse { pool: Some(pool("a", tenant)) }.encode_to_vec();
        assert!(is_owner(TenantId(7), &answer(7)));
        assert!(!is_owner(TenantId(7), &answer(8)) && !is_owner(TenantId(7), &answer(0)));
        assert!(!is_owner(TenantId(7), &[]) && !is_owner(TenantId(7), &[0xff]));
    }

    #[test]
    fn requests_about_one_pool_are_told_from_others() {
        let (method, request) = ask_owner("tank");
        assert_eq!(pool_of(method, &request), Ok(Some("tank".to_owned())));
        assert_eq!(pool_of("Pools/List", &[]), Ok(None));
        assert!(pool_of("Containers/List", &[0xff]).is_err());
    }
}
