//! What a transaction does: its operations, which no two of may concern the same.

use crate::format::admissible::check_scope;
use crate::operations::update::Data;
use crate::state::error::UpdateError;
use crate::versions::intents::{OPERATIONS_MAX, scopes_of_punch};
use crate::versions::timestamps::Scope;
use std::collections::{BTreeMap, BTreeSet};
use weir_proto::object::{AkeyUpdate, Conditions, PunchScope};
use weir_proto::{Key, ObjectId};

/// Most keys that the punches of a transaction name: each is looked up at prepare, which can't be divided.
const PUNCHED_MAX: usize = 2048;

/// One operation of a transaction.
#[derive(Clone, Debug)]
pub enum Operation<'a> {
    /// Stores values of akeys of one dkey; see [`crate::Shard::update`].
    Update {
        /// The object.
        object: ObjectId,
        /// The dkey.
        dkey: Key,
        /// What must hold at the transaction's epoch.
        conditions: Conditions,
        /// The akeys. No two operations of a transaction name the same one.
        akeys: Vec<AkeyUpdate>,
        /// Their values.
        data: Data<'a>,
    },
    /// Removes an object, dkeys or akeys; see [`crate::Shard::punch`].
    Punch {
        /// The object.
        object: ObjectId,
        /// What goes. No other operation of the transaction names a part of it.
        scope: PunchScope,
        /// What must hold at the transaction's epoch.
        conditions: Conditions,
    },
}

impl Operation<'_> {
    pub(crate) fn object(&self) -> ObjectId {
        match self {
            Self::Update { object, .. } | Self::Punch { object, .. } => *object,
        }
    }

    pub(crate) fn scopes(&self) -> Vec<Scope<'_>> {
        match self {
            Self::Update { dkey, .. } => vec![Scope::Dkey(dkey)],
            Self::Punch { scope, .. } => scopes_of_punch(scope),
        }
    }

    /// What a refusal reveals the state of: the whole object if it has to exist, since any dkey creates it.
    pub(crate) fn scopes_of_refusal(&self) -> Vec<Scope<'_>> {
        match self {
            Self::Update { conditions, .. } if conditions.has(Conditions::OBJECT_EXISTS) => {
                vec![Scope::Object]
            }
            _ => self.scopes(),
        }
    }
}

/// Whether a transaction only removes.
pub(crate) fn are_deletes(operations: &[Operation<'_>]) -> bool {
    operations.iter().all(|operation| matches!(operation, Operation::Punch { .. }))
}

/// How many keys a punch names.
fn keys_of(scope: &PunchScope) -> usize {
    match scope {
        PunchScope::Object => 0,
        PunchScope::Dkeys(keys) | PunchScope::Akeys(_, keys) | PunchScope::DkeyWith(_, keys) => keys.len(),
    }
}

/// What the operations of a transaction name in one dkey.
enum Named<'a> {
    Akeys(BTreeSet<&'a Key>),
    Punched,
}

fn twice(what: &dyn core::fmt::Display) -> UpdateError {
    UpdateError::Invalid(format!("two operations of the transaction concern {what}"))
}

/// Notes that an operation concerns these akeys of a dkey, unless another one does.
fn name_akeys<'a>(
    dkeys: &mut BTreeMap<(ObjectId, &'a Key), Named<'a>>,
    (object, dkey): (ObjectId, &'a Key),
    akeys: impl IntoIterator<Item = &'a Key>,
) -> Result<(), UpdateError> {
    let named = dkeys.entry((object, dkey)).or_insert_with(|| Named::Akeys(BTreeSet::new()));
    let Named::Akeys(known) = named else { return Err(twice(dkey)) };
    match akeys.into_iter().find(|akey| !known.insert(akey)) {
        Some(again) => Err(twice(again)),
        None => Ok(()),
    }
}

/// Checks that operations have the right form and that no two of them concern the same.
pub(crate) fn check_operations(operations: &[Operation<'_>]) -> Result<(), UpdateError> {
    if operations.is_empty() || operations.len() > OPERATIONS_MAX {
        let text = format!("a transaction has 1 to {OPERATIONS_MAX} operations, not {}", operations.len());
        return Err(UpdateError::Invalid(text));
    }
    let mut dkeys: BTreeMap<(ObjectId, &Key), Named<'_>> = BTreeMap::new();
    let mut objects: BTreeMap<ObjectId, bool> = BTreeMap::new();
    let mut punched = 0;
    for operation in operations {
        let object = operation.object();
        let whole = matches!(operation, Operation::Punch { scope: PunchScope::Object, .. });
        if let Some(before) = objects.insert(object, whole)
            && (before || whole)
        {
            return Err(twice(&object));
        }
        match operation {
            Operation::Update { dkey, akeys, .. } => {
                name_akeys(&mut dkeys, (object, dkey), akeys.iter().map(|update| &update.akey))?;
            }
            Operation::Punch { scope, conditions, .. } => {
                check_scope(object, scope).map_err(UpdateError::Invalid)?;
                punched += keys_of(scope);
                if punched > PUNCHED_MAX {
                    let text = format!("punches of a transaction name {PUNCHED_MAX} keys at most");
                    return Err(UpdateError::Invalid(text));
                }
                if conditions.0 & !Conditions::PUNCH.0 != 0 {
                    let text = format!("conditions {:#x} make no sense for a punch", conditions.0);
                    return Err(UpdateError::Invalid(text));
                }
                if let PunchScope::Akeys(dkey, akeys) = scope {
                    name_akeys(&mut dkeys, (object, dkey), akeys)?;
                    continue;
                }
                for scope in scopes_of_punch(scope) {
                    if let Scope::Dkey(dkey) = scope
                        && dkeys.insert((object, dkey), Named::Punched).is_some()
                    {
                        return Err(twice(dkey));
                    }
                }
            }
        }
    }
    Ok(())
}
