//! Commands, and those that have taken effect.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use weir_proto::codec;
use weir_store::{AttributeChange, Shard};

use crate::stored::{SCOPE_DONE, load_scope};

/// Most bytes of an encoded command. With what the replica notes beside it, it fits one batch of attributes.
pub const COMMAND_MAX: usize = 960 * 1024;

/// Most commands of which it is remembered that they have taken effect: a client repeats a request for minutes at most, and no
/// service takes more than some hundred commands a second.
const DONE_MAX: usize = 16 * 1024;

/// Longest result of a command that is remembered, in bytes. Others are remembered without their results.
const RESULT_MAX: usize = 2048;

/// The version of stored and sent commands.
const VERSION: u8 = 1;

/// Names a command, however often it is proposed.
pub type CommandId = [u8; 16];

/// A change of the state.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Command {
    /// Its name, when it is to take effect once however often it is proposed.
    pub id: Option<CommandId>,
    /// What is kept with the name for who proposes it again.
    pub result: Vec<u8>,
    /// What it changes, all or nothing. Of several changes of one attribute the last counts.
    pub changes: Vec<AttributeChange>,
}

/// The form of version 1.
#[derive(Serialize, Deserialize)]
struct Form {
    id: Option<CommandId>,
    result: ByteBuf,
    changes: Vec<ChangeForm>,
}

#[derive(Serialize, Deserialize)]
struct ChangeForm {
    scope: ByteBuf,
    name: ByteBuf,
    value: Option<ByteBuf>,
}

impl Command {
    pub(crate) fn encode(self) -> Vec<u8> {
        let changes = self.changes.into_iter().map(|AttributeChange { scope, name, value }| ChangeForm {
            scope: scope.into(),
            name: name.into(),
            value: value.map(Into::into),
        });
        let form = Form { id: self.id, result: self.result.into(), changes: changes.collect() };
        let mut bytes = vec![VERSION];
        bytes.extend(codec::encode(&form));
        bytes
    }

    /// # Errors
    /// When the bytes are no command of a version that is known here.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let Form { id, result, changes } = match bytes.split_first() {
            Some((&VERSION, form)) => codec::decode(form).map_err(|error| error.to_string())?,
            Some((version, _)) => return Err(format!("a command of version {version}")),
            None => return Err("an empty command".to_owned()),
        };
        let changes = changes.into_iter().map(|ChangeForm { scope, name, value }| AttributeChange {
            scope: scope.into_vec(),
            name: name.into_vec(),
            value: value.map(ByteBuf::into_vec),
        });
        Ok(Self { id, result: result.into_vec(), changes: changes.collect() })
    }
}

/// The commands that have taken effect last, by name.
#[derive(Default)]
pub(crate) struct Done {
    results: BTreeMap<CommandId, Vec<u8>>,
    /// In the order in which they took effect, by their numbers.
    order: VecDeque<(u64, CommandId)>,
}

impl Done {
    pub(crate) fn load(shard: &Shard) -> Result<Self, String> {
        let mut done = Self::default();
        for (name, result) in load_scope(shard, SCOPE_DONE) {
            let wrong = || format!("a name of {} bytes among the commands that took effect", name.len());
            let (number, id) = name.split_first_chunk().ok_or_else(wrong)?;
            let id: CommandId = id.try_into().map_err(|_| wrong())?;
            done.order.push_back((u64::from_be_bytes(*number), id));
            done.results.insert(id, result);
        }
        Ok(done)
    }

    /// What is kept of a command that has taken effect.
    pub(crate) fn get(&self, id: &CommandId) -> Option<&Vec<u8>> {
        self.results.get(id)
    }

    /// A command takes effect as entry `index` of the log. Adds what is stored of that.
    pub(crate) fn add(
        &mut self,
        index: u64,
        id: CommandId,
        mut result: Vec<u8>,
        changes: &mut Vec<AttributeChange>,
    ) {
        if result.len() > RESULT_MAX {
            result.clear();
        }
        changes.push(change(index, id, Some(result.clone())));
        self.order.push_back((index, id));
        self.results.insert(id, result);
        if self.order.len() > DONE_MAX
            && let Some((index, id)) = self.order.pop_front()
        {
            changes.push(change(index, id, None));
            self.results.remove(&id);
        }
    }
}

fn change(index: u64, id: CommandId, value: Option<Vec<u8>>) -> AttributeChange {
    let name = [index.to_be_bytes().as_slice(), &id].concat();
    AttributeChange { scope: SCOPE_DONE.to_vec(), name, value }
}
