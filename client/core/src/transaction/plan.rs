//! The changes of a transaction, kept by its client until it commits.

use serde_bytes::ByteBuf;
use weir_proto::object::{Conditions, PunchScope, Value};
use weir_proto::transaction::{COMMIT_MAX, Change};
use weir_proto::{Der, Key};

use crate::Result;
use crate::error::Error;
use crate::object::update::{UPDATE_CONDITIONS, check_conditions, described};
use crate::object::{AkeyWrite, Object};
use crate::operation::scatter;

/// An akey to be written, with a copy of its data.
#[derive(Clone, Debug)]
struct Write {
    akey: Key,
    value: Value,
    conditions: Conditions,
    data: Vec<u8>,
}

impl Write {
    fn of(write: &AkeyWrite<'_>) -> Self {
        let mut data = Vec::with_capacity(scatter::total(&write.data));
        scatter::gather(&write.data, &mut data);
        Self { akey: write.akey.clone(), value: write.value.clone(), conditions: write.conditions, data }
    }

    fn borrowed(&self) -> AkeyWrite<'_> {
        AkeyWrite {
            akey: self.akey.clone(),
            value: self.value.clone(),
            conditions: self.conditions,
            data: vec![&self.data],
        }
    }

    fn is_single(&self) -> bool {
        matches!(self.value, Value::Single { .. })
    }
}

/// What is to be done.
#[derive(Clone, Debug)]
enum Step {
    Update { dkey: Key, conditions: Conditions, writes: Vec<Write> },
    Punch { scope: PunchScope, conditions: Conditions },
}

impl Step {
    /// Bytes that it takes at least, in a message.
    fn bytes(&self) -> usize {
        let keys = |keys: &[Key]| keys.iter().map(|key| key.as_bytes().len()).sum::<usize>();
        match self {
            Self::Update { dkey, writes, .. } => {
                let writes = writes.iter().map(|write| write.akey.as_bytes().len() + write.data.len());
                dkey.as_bytes().len() + writes.sum::<usize>()
            }
            Self::Punch { scope: PunchScope::Object, .. } => 0,
            Self::Punch { scope: PunchScope::Dkeys(dkeys), .. } => keys(dkeys),
            Self::Punch {
                scope: PunchScope::Akeys(dkey, akeys) | PunchScope::DkeyWith(dkey, akeys), ..
            } => dkey.as_bytes().len() + keys(akeys),
        }
    }
}

/// The changes of a transaction. All happen at one epoch, so that each key is changed once at most: of two changes of the
/// same the later one counts, where that can be said without reading.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    steps: Vec<(Object, Step)>,
}

impl Plan {
    pub(super) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Whether it changes an object with replicas.
    pub(super) fn has_replicas(&self) -> bool {
        self.steps.iter().any(|(object, _)| object.is_replicated())
    }

    pub(super) fn len(&self) -> usize {
        self.steps.len()
    }

    /// Adds an update of akeys of one dkey.
    pub(super) fn update(
        &mut self,
        operation: &'static str,
        object: &Object,
        dkey: &Key,
        conditions: Conditions,
        writes: &[AkeyWrite<'_>],
    ) -> Result<()> {
        check_conditions(operation, conditions, UPDATE_CONDITIONS)?;
        described(operation, writes)?;
        let writes: Vec<Write> = writes.iter().map(Write::of).collect();
        for (other, step) in &self.steps {
            if other.id() != object.id() {
                continue;
            }
            match step {
                Step::Punch { scope, .. } => {
                    if writes.iter().any(|write| covers(scope, dkey, Some(&write.akey))) {
                        return Err(again(operation, object, dkey, "is removed and then written"));
                    }
                }
                Step::Update { dkey: same, conditions, writes: before } if same == dkey => {
                    for old in before {
                        let Some(new) = writes.iter().find(|write| write.akey == old.akey) else { continue };
                        let unconditional = are_none(*conditions, old);
                        if !(old.is_single() && new.is_single() && unconditional) {
                            return Err(again(operation, object, dkey, "is written twice"));
                        }
                    }
                }
                Step::Update { .. } => {}
            }
        }
        let step = Step::Update { dkey: dkey.clone(), conditions, writes: writes.clone() };
        let written = |same: &Key, akey: &Key| same == dkey && writes.iter().any(|write| write.akey == *akey);
        self.add(operation, object, step, written)
    }

    /// Adds a removal: one dkey, one object, or akeys of one dkey.
    pub(super) fn punch(
        &mut self,
        operation: &'static str,
        object: &Object,
        scope: &PunchScope,
        conditions: Conditions,
    ) -> Result<()> {
        check_conditions(operation, conditions, Conditions::PUNCH)?;
        let of_object = || self.steps.iter().filter(|(other, _)| other.id() == object.id());
        let covered = |dkey: &Key, akey: &Key| covers(scope, dkey, Some(akey));
        for (_, step) in of_object() {
            match step {
                Step::Update { dkey, conditions, writes } => {
                    let mut gone = writes.iter().filter(|write| covered(dkey, &write.akey));
                    if gone.any(|write| !are_none(*conditions, write)) {
                        let what = "is written on a condition and then removed";
                        return Err(again(operation, object, dkey, what));
                    }
                }
                Step::Punch { scope: before, .. } => {
                    if let Some(dkey) = common(before, scope) {
                        return Err(again(operation, object, dkey, "is removed twice"));
                    }
                    if matches!(before, PunchScope::Object) || *scope == PunchScope::Object {
                        return Err(again(operation, object, &"the object", "is removed twice"));
                    }
                }
            }
        }
        let step = Step::Punch { scope: scope.clone(), conditions };
        self.add(operation, object, step, covered)
    }

    /// Adds a step in place of what was to be written to akeys that it makes void. What doesn't fit leaves all as it is.
    fn add(
        &mut self,
        operation: &'static str,
        object: &Object,
        step: Step,
        voids: impl Fn(&Key, &Key) -> bool,
    ) -> Result<()> {
        let mut steps = self.steps.clone();
        steps.retain_mut(|(other, step)| match step {
            Step::Update { dkey, writes, .. } if other.id() == object.id() => {
                writes.retain(|write| !voids(dkey, &write.akey));
                !writes.is_empty()
            }
            _ => true,
        });
        steps.push((object.clone(), step));
        let bytes: usize = steps.iter().map(|(_, step)| step.bytes()).sum();
        if bytes > COMMIT_MAX {
            let reason = format!("its changes have {bytes} bytes or more, at most {COMMIT_MAX} fit");
            return Err(Error::Size { operation, reason, der: Der::REC2BIG });
        }
        self.steps = steps;
        Ok(())
    }

    /// The changes as they are sent.
    pub(super) fn changes(&self, operation: &'static str) -> Result<Vec<(&Object, Change)>> {
        self.steps
            .iter()
            .map(|(object, step)| {
                let change = match step {
                    Step::Punch { scope, conditions } => {
                        Change::Punch { object: object.id(), scope: scope.clone(), conditions: *conditions }
                    }
                    Step::Update { dkey, conditions, writes } => {
                        let borrowed: Vec<_> = writes.iter().map(Write::borrowed).collect();
                        let (akeys, _) = described(operation, &borrowed)?;
                        let data: Vec<u8> = writes.iter().flat_map(|write| &write.data).copied().collect();
                        let (dkey, data) = (dkey.clone(), ByteBuf::from(data));
                        Change::Update { object: object.id(), dkey, conditions: *conditions, akeys, data }
                    }
                };
                Ok((object, change))
            })
            .collect()
    }
}

/// Whether a write happens whatever was there before.
fn are_none(conditions: Conditions, write: &Write) -> bool {
    conditions == Conditions::NONE
        || conditions == Conditions::PER_AKEY && write.conditions == Conditions::NONE
}

/// Whether a removal takes an akey of a dkey with it.
fn covers(scope: &PunchScope, dkey: &Key, akey: Option<&Key>) -> bool {
    match scope {
        PunchScope::Object => true,
        PunchScope::Dkeys(dkeys) => dkeys.contains(dkey),
        PunchScope::DkeyWith(gone, _) => gone == dkey,
        PunchScope::Akeys(of, akeys) => of == dkey && akey.is_none_or(|akey| akeys.contains(akey)),
    }
}

/// A dkey in which two removals concern the same.
fn common<'a>(one: &'a PunchScope, other: &PunchScope) -> Option<&'a Key> {
    match one {
        PunchScope::Object => None,
        PunchScope::Dkeys(dkeys) => dkeys.iter().find(|dkey| covers(other, dkey, None)),
        PunchScope::DkeyWith(dkey, _) => covers(other, dkey, None).then_some(dkey),
        PunchScope::Akeys(dkey, akeys) => {
            akeys.iter().any(|akey| covers(other, dkey, Some(akey))).then_some(dkey)
        }
    }
}

/// The refusal of a change that depends on the one before.
fn again(operation: &'static str, object: &Object, dkey: &dyn core::fmt::Display, what: &str) -> Error {
    let message = format!("{dkey} {what} in one transaction, all of which happens at one epoch: use two");
    Error::refused(operation, object.to_string(), Der::NOTSUPPORTED, message)
}
