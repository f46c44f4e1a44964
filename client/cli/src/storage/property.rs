//! Properties of pools and containers, as `get-prop` of `daos` and `dmg` shows them.

use clap::Args;
use serde_json::{Value, json};
use weir_management::v1::PoolSetPropertiesRequest;

use super::container::ContainerName;
use crate::error::CliError;
use crate::output::{Answer, table};
use crate::values;

/// A property.
#[derive(Clone, PartialEq, Debug)]
pub struct Property {
    name: &'static str,
    description: &'static str,
    value: Value,
}

impl Property {
    /// A property by the name that scripts know it by.
    pub fn new(name: &'static str, description: &'static str, value: impl Into<Value>) -> Self {
        Self { name, description, value: value.into() }
    }

    fn to_json(&self) -> Value {
        json!({"name": self.name, "description": self.description, "value": self.value})
    }

    fn row(&self) -> Vec<String> {
        let value = self.value.as_str().map_or_else(|| self.value.to_string(), str::to_owned);
        vec![format!("{} ({})", self.description, self.name), value]
    }
}

/// Names properties of a pool.
#[derive(Args, Debug, Clone)]
pub struct PoolProperties {
    /// Pool, by label or UUID.
    #[arg(value_parser = values::name)]
    pub pool: String,
    /// Names of properties.
    #[arg(value_delimiter = ',', value_parser = values::name)]
    pub properties: Vec<String>,
}

impl PoolProperties {
    /// Those of a pool that were asked for.
    ///
    /// # Errors
    /// When there is none of a name.
    pub fn answer(&self, all: &[Property]) -> Result<Answer, CliError> {
        chosen(&format!("pool {}", self.pool), &self.properties, all)
    }
}

/// Properties of a pool that are to change.
#[derive(Args, Debug, Clone)]
pub struct PoolChanges {
    /// Pool, by label or UUID.
    #[arg(value_parser = values::name)]
    pub pool: String,
    /// Properties with their values, e.g. `rebuild_delay:600` (seconds for which an engine is away before others get its places).
    #[arg(required = true, value_delimiter = ',', value_parser = pool_change)]
    pub properties: Vec<PoolChange>,
}

/// A property of a pool with its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PoolChange {
    /// For how many seconds an engine is away before others get its places.
    RebuildDelay(u32),
}

fn pool_change(text: &str) -> Result<PoolChange, String> {
    let (name, value) = text.split_once([':', '=']).ok_or("it is not NAME:VALUE")?;
    match name {
        "rebuild_delay" => value
            .parse()
            .map(PoolChange::RebuildDelay)
            .map_err(|_| format!("\"{value}\" is no number of seconds, 0 to 604800")),
        _ => Err(format!("no property \"{name}\" can be changed; rebuild_delay can")),
    }
}

impl PoolChanges {
    /// The request for the changes. Of a property that is named twice the last value counts.
    pub(super) fn request(&self) -> PoolSetPropertiesRequest {
        let mut request = PoolSetPropertiesRequest { pool: self.pool.clone(), ..Default::default() };
        for change in &self.properties {
            match change {
                PoolChange::RebuildDelay(seconds) => request.rebuild_delay_seconds = Some(*seconds),
            }
        }
        request
    }
}

/// Names properties of a container.
#[derive(Args, Debug, Clone)]
pub struct ContainerPropertyNames {
    /// The container.
    #[command(flatten)]
    pub name: ContainerName,
    /// Names of properties.
    #[arg(long, value_delimiter = ',', value_parser = values::name)]
    pub properties: Vec<String>,
}

impl ContainerPropertyNames {
    /// Those of a container that were asked for.
    ///
    /// # Errors
    /// When there is none of a name.
    pub fn answer(&self, all: &[Property]) -> Result<Answer, CliError> {
        chosen(
            &format!("container {} of pool {}", self.name.container, self.name.pool),
            &self.properties,
            all,
        )
    }
}

fn chosen(of: &str, names: &[String], all: &[Property]) -> Result<Answer, CliError> {
    if let Some(unknown) = names.iter().find(|name| !all.iter().any(|property| property.name == **name)) {
        let known: Vec<_> = all.iter().map(|property| property.name).collect();
        return Err(CliError::Usage(format!(
            "{of} has no property \"{unknown}\"; it has {}",
            known.join(", ")
        )));
    }
    let is_chosen = |property: &&Property| names.is_empty() || names.iter().any(|name| name == property.name);
    let found: Vec<&Property> = all.iter().filter(is_chosen).collect();
    let mut rows = vec![["Property", "Value"].map(String::from).to_vec()];
    rows.extend(found.iter().map(|property| property.row()));
    Ok(Answer::new(found.iter().map(|property| property.to_json()).collect(), table(&rows)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_changed_is_named_with_its_value() {
        assert_eq!(pool_change("rebuild_delay:60"), Ok(PoolChange::RebuildDelay(60)));
        for (text, says) in [
            ("rebuild_delay", "not NAME:VALUE"),
            ("rebuild_delay:-1", "\"-1\" is no number of seconds"),
            ("label:tank", "no property \"label\" can be changed"),
        ] {
            let error = pool_change(text).expect_err("refused");
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn what_is_named_is_shown_and_unknown_names_are_refused() {
        let all = [Property::new("label", "Label", "home"), Property::new("chunk_size", "Chunk", 4096)];
        let answer = chosen("container home", &["chunk_size".into()], &all).expect("known");
        assert_eq!(answer.response, json!([{"name": "chunk_size", "description": "Chunk", "value": 4096}]));
        assert_eq!(answer.text, "Property            Value\nChunk (chunk_size)  4096\n");
        let refused = chosen("container home", &["rd_fac".into()], &all).expect_err("unknown");
        assert!(
            refused.to_string().contains("no property \"rd_fac\"; it has label, chunk_size"),
            "{refused}"
        );
        assert_eq!(chosen("x", &[], &all).expect("all").response.as_array().map(Vec::len), Some(2));
    }
}
