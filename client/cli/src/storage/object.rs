//! `object` commands: where objects lie.

use std::path::Path;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use weir_client::{Object, PlacedTarget, Placement, Rights, TargetState};

use super::kv::parse_object;
use crate::connection::session;
use crate::error::CliError;
use crate::output::{Answer, Output, table};
use crate::values;

/// Objects.
#[derive(Subcommand, Debug, Clone)]
pub enum ObjectCommand {
    /// Show which targets hold an object, and which of them leads each group of replicas.
    Layout(ObjectLayout),
}

/// Names an object.
#[derive(Args, Debug, Clone)]
pub struct ObjectLayout {
    /// Pool, by label or UUID.
    #[arg(value_parser = values::name)]
    pub pool: String,
    /// Container, by label or UUID.
    #[arg(value_parser = values::name)]
    pub container: String,
    /// Object: its full id as "hi.lo", or the number of a key-value object.
    #[arg(value_parser = values::name, allow_negative_numbers = true)]
    pub object: String,
}

/// Performs an object command.
///
/// # Errors
/// When the engines refuse it or cannot be reached.
pub fn run(
    command: ObjectCommand,
    attach: &Path,
    patience: Duration,
    output: Output,
) -> Result<Answer, CliError> {
    let ObjectCommand::Layout(of) = command;
    let names = (of.pool.as_str(), of.container.as_str());
    session::with_container(names, Rights::READ, attach, patience, output, async |session| {
        let oid = parse_object(&of.object, session.container)?;
        let placement = Object::open_unchecked(session.container, oid).placement(session.context)?;
        let text = format!(
            "Object {}.{} of class {}, by version {} of the pool map\n{}",
            oid.hi,
            oid.lo,
            placement.class,
            placement.map_version,
            table(&rows(&placement))
        );
        let object = format!("{}.{}", oid.hi, oid.lo);
        Ok(Answer::new(to_json(&object, &placement), text))
    })
}

/// The names of daos-api: `DAOS_TS_*`.
const fn state_name(state: TargetState) -> &'static str {
    match state {
        TargetState::UpIn => "UPIN",
        TargetState::Down => "DOWN",
        TargetState::Up => "UP",
        TargetState::New => "NEW",
        TargetState::Drain => "DRAIN",
        TargetState::DownOut => "DOWNOUT",
    }
}

fn rows(placement: &Placement) -> Vec<Vec<String>> {
    let head = ["GROUP", "RANK", "TARGET", "STATE", "LEADER"].map(str::to_owned).to_vec();
    let groups = placement.groups.iter().enumerate();
    let rows = groups.flat_map(|(number, group)| group.iter().map(move |target| row(number, target)));
    core::iter::once(head).chain(rows).collect()
}

fn row(group: usize, target: &PlacedTarget) -> Vec<String> {
    let leads = if target.leads { "yes" } else { "" };
    let PlacedTarget { rank, index, state, .. } = target;
    vec![group.to_string(), rank.to_string(), index.to_string(), state_name(*state).into(), leads.into()]
}

fn to_json(object: &str, placement: &Placement) -> Value {
    let groups = placement.groups.iter().map(|group| {
        let targets = group.iter().map(|target| {
            json!({
                "rank": target.rank.0,
                "target": target.index.0,
                "state": state_name(target.state),
                "leader": target.leads,
            })
        });
        targets.collect::<Vec<_>>()
    });
    json!({
        "object": object,
        "class": placement.class.to_string(),
        "map_version": placement.map_version,
        "groups": groups.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_client::{ObjectClass, Rank};
    use weir_proto::TargetIndex;

    #[test]
    fn a_group_shows_its_members_and_who_leads() {
        let target =
            |rank, leads, state| PlacedTarget { rank: Rank(rank), index: TargetIndex(1), state, leads };
        let placement = Placement {
            class: "RP_2G1".parse::<ObjectClass>().expect("a registered name"),
            map_version: 7,
            groups: vec![vec![target(3, false, TargetState::Down), target(5, true, TargetState::UpIn)]],
        };
        let shown = rows(&placement);
        assert_eq!(shown[1], ["0", "3", "1", "DOWN", ""]);
        assert_eq!(shown[2], ["0", "5", "1", "UPIN", "yes"]);
        let json = to_json("1.2", &placement);
        assert_eq!(json["groups"][0][1]["leader"], true);
        assert_eq!((json["class"].as_str(), json["map_version"].as_u64()), (Some("RP_2G1"), Some(7)));
    }
}
