//! How much of a target's time rebuilds get.

use weir_object::REBUILD_FLOOR_DEFAULT;

use super::{ConfigError, invalid};

/// The least part of a target's time for rebuilds, of what is given in percent.
pub fn floor(percent: Option<u32>) -> Result<f64, ConfigError> {
    match percent {
        None => Ok(REBUILD_FLOOR_DEFAULT),
        Some(percent @ 1..=100) => Ok(f64::from(percent) / 100.0),
        Some(percent) => {
            let reason = "give 1 to 100 percent: with none a rebuild would not end while clients work";
            Err(invalid("rebuild_floor", &percent.to_string(), reason))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_floor_is_a_part_of_the_time_and_not_none() {
        let part = |percent| floor(percent).ok();
        assert_eq!(
            (part(None), part(Some(25)), part(Some(100))),
            (Some(REBUILD_FLOOR_DEFAULT), Some(0.25), Some(1.0))
        );
        assert_eq!((part(Some(0)), part(Some(101))), (None, None));
    }
}
