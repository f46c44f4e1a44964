//! Attributes of containers.

use std::collections::BTreeMap;

use serde_bytes::ByteBuf;
use weir_proto::limits::{ATTRIBUTE_NAME_MAX, ATTRIBUTE_VALUE_MAX};
use weir_proto::pool::{AttributeSetRequest, Attributes};
use weir_proto::{Capability, ContainerId, Rights};
use weir_raft::CommandId;

use super::{Container, PoolService, is_in_doubt};
use crate::error::Failed;
use crate::record;

/// Most attributes of one container: with names and values of the usual hundred bytes, a hundred KiB.
const ATTRIBUTES_MAX: usize = 1024;

/// Why an attribute is refused, for a message.
pub(super) fn check(name: &str, value: Option<&ByteBuf>) -> Result<(), String> {
    if name.is_empty() || name.len() > ATTRIBUTE_NAME_MAX {
        return Err(format!("an attribute's name has 1 to {ATTRIBUTE_NAME_MAX} bytes, not {}", name.len()));
    }
    match value {
        Some(value) if value.len() > ATTRIBUTE_VALUE_MAX => Err(format!(
            "attribute \"{name}\" has {} bytes, at most {ATTRIBUTE_VALUE_MAX} are kept",
            value.len()
        )),
        _ => Ok(()),
    }
}

/// Why a number of attributes is refused, for a message.
pub(super) fn check_count(count: usize) -> Result<(), String> {
    if count > ATTRIBUTES_MAX {
        return Err(format!("a container keeps at most {ATTRIBUTES_MAX} attributes; delete some first"));
    }
    Ok(())
}

impl PoolService {
    /// Waits until no task changes a container's attributes: the shard shows changes that aren't durable yet. The
    /// attributes stay as they are for as long as the result is kept.
    ///
    /// # Errors
    /// When the container was destroyed, or whether the last change of its attributes is durable isn't known.
    pub(crate) async fn settled_attributes(&self, container: &Container) -> Result<impl Sized, Failed> {
        let turn = self.turn_of(container).await?;
        if container.unsettled_attributes.get() {
            let object = self.object(&container.label());
            return Err(Failed::Unsettled { object, what: "attributes" });
        }
        Ok(turn)
    }

    /// Every attribute of a container, as it is in memory.
    pub fn attributes_of(&self, container: ContainerId) -> BTreeMap<String, ByteBuf> {
        let entries = record::load_scope(&self.shard, &record::scope_attributes(container));
        let text =
            |(name, value): (Vec<u8>, Vec<u8>)| Some((String::from_utf8(name).ok()?, ByteBuf::from(value)));
        entries.into_iter().filter_map(text).collect()
    }

    /// Sets and deletes attributes, all or none, once for a request of that name. Of one that is named more than once
    /// the last value counts.
    ///
    /// # Errors
    /// When the handle doesn't allow writing, or a name or value is too long.
    pub async fn set_attributes(
        &self,
        request: AttributeSetRequest,
        id: Option<CommandId>,
    ) -> Result<(), Failed> {
        let container = self.authorize_container(&request.capability, Rights::WRITE)?;
        let invalid = |reason: String| Failed::Invalid { object: self.object(&container.label()), reason };
        let mut wanted = BTreeMap::new();
        for (name, value) in request.attributes {
            check(&name, value.as_ref()).map_err(invalid)?;
            wanted.insert(name, value);
        }
        let _turn = self.turn_of(&container).await?;
        if self.has_done(id) {
            return Ok(());
        }
        let known = self.attributes_of(container.id);
        let others = known.keys().filter(|name| !wanted.contains_key(*name)).count();
        check_count(others + wanted.len()).map_err(invalid)?;
        let scope = record::scope_attributes(container.id);
        let change = |(name, value): (String, Option<ByteBuf>)| {
            record::change(&scope, name.as_bytes(), value.map(ByteBuf::into_vec))
        };
        let committed = self.commit_once(id, &wanted.into_iter().map(change).collect::<Vec<_>>()).await;
        container.unsettled_attributes.set(container.unsettled_attributes.get() || is_in_doubt(&committed));
        committed
    }

    /// Reads attributes: those named, or all.
    ///
    /// # Errors
    /// When the handle is not valid any more, more are named than a container keeps, or whether the last change is durable isn't
    /// known.
    pub async fn get_attributes(
        &self,
        capability: &Capability,
        names: &[String],
    ) -> Result<Attributes, Failed> {
        let container = self.authorize_container(capability, Rights::READ)?;
        let _turn = self.settled_attributes(&container).await?;
        if names.is_empty() {
            return Ok(Attributes { attributes: self.attributes_of(container.id) });
        }
        if names.len() > ATTRIBUTES_MAX {
            return Err(Failed::Invalid {
                object: self.object(&container.label()),
                reason: format!(
                    "at most {ATTRIBUTES_MAX} attributes are read at once; name fewer, or none for all"
                ),
            });
        }
        let scope = record::scope_attributes(container.id);
        let value = |name: &String| {
            let value = self.shard.attribute(&scope, name.as_bytes())?;
            Some((name.clone(), ByteBuf::from(value)))
        };
        Ok(Attributes { attributes: names.iter().filter_map(value).collect() })
    }
}
