//! `object` commands: where objects lie, and whether their replicas are alike.

use std::path::Path;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use weir_client::{
    Mismatch, MismatchKind, Object, ObjectId, PlacedTarget, Placement, Rights, TargetState, Verified,
};

use super::kv::parse_object;
use crate::connection::session::{self, Session};
use crate::error::CliError;
use crate::output::{Answer, Output, lines, name_of, table};
use crate::values;

/// Objects.
#[derive(Subcommand, Debug, Clone)]
pub enum ObjectCommand {
    /// Show which targets hold an object, and which of them leads each group of replicas.
    Layout(ObjectLayout),
    /// Compare the replicas of an object with each other and with their checksums; exit code 9 when one is damaged, different or
    /// not in service.
    Verify(ObjectLayout),
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
    let (of, compares) = match command {
        ObjectCommand::Layout(of) => (of, false),
        ObjectCommand::Verify(of) => (of, true),
    };
    let names = (of.pool.as_str(), of.container.as_str());
    session::with_container(names, Rights::READ, attach, patience, output, async |session| {
        let oid = parse_object(&of.object, session.container)?;
        if compares { verify(session, oid).await } else { layout(session, oid) }
    })
}

fn shown(oid: ObjectId) -> String {
    format!("{}.{}", oid.hi, oid.lo)
}

fn heading(oid: ObjectId, placement: &Placement) -> String {
    let Placement { class, map_version, .. } = placement;
    format!("Object {} of class {class}, by version {map_version} of the pool map\n", shown(oid))
}

fn layout(session: &Session<'_>, oid: ObjectId) -> Result<Answer, CliError> {
    let placement = Object::open_unchecked(session.container, oid).placement(session.context)?;
    let text = format!("{}{}", heading(oid, &placement), table(&rows(&placement)));
    Ok(Answer::new(to_json(&shown(oid), &placement), text))
}

async fn verify(session: &Session<'_>, oid: ObjectId) -> Result<Answer, CliError> {
    let object = Object::open(session.container, oid)?;
    let verified = object.verify(session.context, &|| session.goes_on()).await?;
    let Verified { placement, dkeys, bytes, mismatches, .. } = &verified;
    let found: Vec<String> = mismatches.iter().map(in_words).collect();
    let text = format!(
        "{}{}{dkeys} dkeys and {bytes} bytes compared\n{}",
        heading(oid, placement),
        table(&verified_rows(&verified)),
        lines(&found)
    );
    let answer = Answer::new(verified_json(&shown(oid), &verified), text);
    let bad = results(&verified).filter(|(_, _, result)| *result != "ok").count();
    if bad == 0 {
        return Ok(answer);
    }
    let failure = format!(
        "replicas of object {} that are damaged, different or not in service: {bad}; a target repairs damage that is read, if another replica has the data",
        shown(oid)
    );
    Ok(answer.but(CliError::Damaged(failure)))
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

/// Group, target and what was found of each replica.
fn results(verified: &Verified) -> impl Iterator<Item = (usize, PlacedTarget, &'static str)> {
    let groups = verified.placement.groups.iter().enumerate();
    let all = groups.flat_map(|(number, group)| group.iter().map(move |target| (number, *target)));
    all.map(|(number, target)| {
        let is_of = |one: &&Mismatch| {
            one.group == number && (one.replica.rank, one.replica.index) == (target.rank, target.index)
        };
        let mut of_it = verified.mismatches.iter().filter(is_of).map(|one| &one.kind);
        let result = match of_it.next() {
            Some(MismatchKind::Damaged(_)) => "damaged",
            Some(MismatchKind::Different) if of_it.any(|kind| *kind != MismatchKind::Different) => "damaged",
            Some(MismatchKind::Different) => "different",
            None if verified.compared.contains(&(number, target)) => "ok",
            None => "not compared",
        };
        (number, target, result)
    })
}

fn verified_rows(verified: &Verified) -> Vec<Vec<String>> {
    let head = ["GROUP", "RANK", "TARGET", "STATE", "RESULT"].map(str::to_owned).to_vec();
    let rows = results(verified).map(|(group, PlacedTarget { rank, index, state, .. }, result)| {
        let numbers = [group.to_string(), rank.to_string(), index.to_string()];
        numbers.into_iter().chain([state_name(state).to_owned(), result.to_owned()]).collect()
    });
    core::iter::once(head).chain(rows).collect()
}

/// What is wrong, for people.
fn in_words(mismatch: &Mismatch) -> String {
    let Mismatch { group, replica: PlacedTarget { rank, index, .. }, dkey, akey, kind } = mismatch;
    let keys = [("dkey", dkey), ("akey", akey)]
        .into_iter()
        .filter_map(|(name, key)| key.as_ref().map(|key| format!(", {name} {}", name_of(key.as_bytes()))));
    let what = match kind {
        MismatchKind::Damaged(reason) => reason.as_str(),
        MismatchKind::Different => "differs from the group's first sound replica",
    };
    format!("group {group}, target {index} of rank {rank}{}: {what}", keys.collect::<String>())
}

fn verified_json(object: &str, verified: &Verified) -> Value {
    let replicas = results(verified).map(|(group, target, result)| {
        let PlacedTarget { rank, index, state, .. } = target;
        json!({
            "group": group,
            "rank": rank.0,
            "target": index.0,
            "state": state_name(state),
            "result": result,
        })
    });
    let replicas: Vec<Value> = replicas.collect();
    let mismatches = verified.mismatches.iter().map(|mismatch| {
        let Mismatch { group, replica, dkey, akey, kind } = mismatch;
        let key = |key: Option<&weir_client::Key>| key.map(|key| name_of(key.as_bytes()));
        let (what, reason) = match kind {
            MismatchKind::Damaged(reason) => ("damaged", Some(reason)),
            MismatchKind::Different => ("different", None),
        };
        json!({
            "group": group,
            "rank": replica.rank.0,
            "target": replica.index.0,
            "dkey": key(dkey.as_ref()),
            "akey": key(akey.as_ref()),
            "result": what,
            "reason": reason,
        })
    });
    json!({
        "object": object,
        "class": verified.placement.class.to_string(),
        "map_version": verified.placement.map_version,
        "dkeys": verified.dkeys,
        "bytes": verified.bytes,
        "replicas": replicas,
        "mismatches": mismatches.collect::<Vec<_>>(),
    })
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
    fn a_replica_that_is_damaged_different_or_away_is_told_from_one_that_is_sound() {
        let target =
            |rank, state| PlacedTarget { rank: Rank(rank), index: TargetIndex(0), state, leads: false };
        let all = [0, 1, 2, 3].map(|rank| target(rank, TargetState::UpIn));
        let away = target(4, TargetState::Down);
        let key = |text: &str| Some(weir_client::Key::new(text.as_bytes()).expect("a short key"));
        let mismatch = |replica, kind| Mismatch { group: 0, replica, dkey: key("d"), akey: key("a"), kind };
        let damaged = || MismatchKind::Damaged("it is damaged".into());
        let verified = Verified {
            placement: Placement {
                class: "RP_2G1".parse::<ObjectClass>().expect("a registered name"),
                map_version: 7,
                groups: vec![all.iter().copied().chain([away]).collect()],
            },
            compared: all.map(|target| (0, target)).to_vec(),
            dkeys: 1,
            bytes: 8,
            mismatches: vec![
                mismatch(all[1], MismatchKind::Different),
                mismatch(all[2], MismatchKind::Different),
                mismatch(all[2], damaged()),
                mismatch(all[3], damaged()),
            ],
        };
        let found: Vec<&str> = results(&verified).map(|(_, _, result)| result).collect();
        assert_eq!(found, ["ok", "different", "damaged", "damaged", "not compared"]);
        assert_eq!(verified_rows(&verified)[4], ["0", "3", "0", "UPIN", "damaged"]);
        let words = in_words(&verified.mismatches[3]);
        assert_eq!(words, "group 0, target 0 of rank 3, dkey d, akey a: it is damaged");
        let json = verified_json("1.2", &verified);
        assert_eq!(
            (&json["replicas"][4]["result"], &json["mismatches"][0]["dkey"]),
            (&"not compared".into(), &"d".into())
        );
    }

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
