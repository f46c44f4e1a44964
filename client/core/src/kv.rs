//! Flat key-value objects: one string key, one opaque value.

use weir_proto::object::Conditions;
use weir_proto::{Der, Key, ObjectId};

use crate::error::Error;
use crate::handles::Container;
use crate::object::{AkeyRead, AkeyWrite, Anchor, Object, Page};
use crate::session::Context;
use crate::transaction::Transaction;
use crate::{Result, kind};

/// The one akey of a key-value object, under which each dkey's value stands.
const VALUE: &[u8] = b"v";

/// Bytes that a `get` of unknown size asks for at once; a longer value costs a second request.
const GET_GUESS: usize = 4096;

/// A key-value object. Plain data: cheap to clone, usable from any context of the system.
#[derive(Clone, Debug)]
pub struct Kv {
    object: Object,
}

impl Kv {
    /// Opens a key-value object. Sends nothing.
    ///
    /// # Errors
    /// `INVAL` when the id's type is not a key-value one or its class is not supported.
    pub fn open(container: &Container, oid: ObjectId) -> Result<Self> {
        if !matches!(oid.kind(), kind::KV_HASHED | kind::KV_UINT64 | kind::KV_LEXICAL) {
            return Err(Error::invalid("open key-value object", format!("{oid:?} has another type")));
        }
        Ok(Self { object: Object::open(container, oid)? })
    }

    /// The object beneath.
    #[must_use]
    pub fn object(&self) -> &Object {
        &self.object
    }

    /// The same keys and values, seen by a view of the object: at a snapshot, or as a transaction reads it.
    #[must_use]
    pub fn with_object(&self, object: Object) -> Self {
        Self { object }
    }

    /// Stores a value. [`Conditions::DKEY_INSERT`] refuses an existing key with `EXIST`,
    /// [`Conditions::DKEY_UPDATE`] a missing one with `NONEXIST`.
    ///
    /// # Errors
    /// As [`Object::update`]; `INVAL` for an empty value.
    pub async fn put(
        &self,
        context: &Context,
        key: &[u8],
        value: &[u8],
        conditions: Conditions,
    ) -> Result<()> {
        self.object.update(context, &dkey("put", key)?, conditions, &writes_of(value)?).await?;
        Ok(())
    }

    /// Stores a value when a transaction commits.
    ///
    /// # Errors
    /// As [`Transaction::update`]; `INVAL` for an empty value.
    pub fn put_within(
        &self,
        transaction: &mut Transaction,
        key: &[u8],
        value: &[u8],
        conditions: Conditions,
    ) -> Result<()> {
        transaction.update(&self.object, &dkey("put", key)?, conditions, &writes_of(value)?)
    }

    /// Reads a value; `None` when there is none.
    ///
    /// # Errors
    /// As [`Object::fetch`].
    pub async fn get(&self, context: &Context, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut value = vec![0; GET_GUESS];
        loop {
            let size = self.get_into(context, key, Conditions::NONE, &mut value).await?;
            let size = usize::try_from(size).unwrap_or(usize::MAX);
            if size <= value.len() {
                value.truncate(size);
                return Ok((size > 0).then_some(value));
            }
            value.resize(size, 0);
        }
    }

    /// Reads a value to `into` and returns its size, which may be more than was room for; 0 when there is none.
    /// With [`Conditions::DKEY_FETCH`] a missing key is `NONEXIST`.
    ///
    /// # Errors
    /// As [`Object::fetch`].
    pub async fn get_into(
        &self,
        context: &Context,
        key: &[u8],
        conditions: Conditions,
        into: &mut [u8],
    ) -> Result<u64> {
        let mut reads = [AkeyRead::single(value_key()?, into)];
        let found = self.object.fetch(context, &dkey("get", key)?, conditions, &mut reads).await?;
        Ok(found.first().map_or(0, |found| found.size))
    }

    /// Removes a key. With [`Conditions::PUNCH`] a missing one is `NONEXIST`.
    ///
    /// # Errors
    /// As [`Object::punch_dkeys`].
    pub async fn remove(&self, context: &Context, key: &[u8], conditions: Conditions) -> Result<()> {
        self.object.punch_dkeys(context, conditions, &[dkey("remove", key)?]).await
    }

    /// Removes a key when a transaction commits. With [`Conditions::PUNCH`] it must be there then.
    ///
    /// # Errors
    /// As [`Transaction::punch_dkeys`].
    pub fn remove_within(
        &self,
        transaction: &mut Transaction,
        key: &[u8],
        conditions: Conditions,
    ) -> Result<()> {
        transaction.punch_dkeys(&self.object, conditions, &[dkey("remove", key)?])
    }

    /// Lists keys, at most `limit` in a page.
    ///
    /// # Errors
    /// As [`Object::list_dkeys`].
    pub async fn list(&self, context: &Context, anchor: &Anchor, limit: u32) -> Result<Page> {
        self.object.list_dkeys(context, anchor, limit, None).await
    }

    /// Removes the object with all keys.
    ///
    /// # Errors
    /// As [`Object::punch`].
    pub async fn destroy(&self, context: &Context) -> Result<()> {
        self.object.punch(context).await
    }
}

fn writes_of(value: &[u8]) -> Result<[AkeyWrite<'_>; 1]> {
    if value.is_empty() {
        return Err(Error::invalid("put", "an empty value means no value; remove the key instead"));
    }
    Ok([AkeyWrite::single(value_key()?, value)])
}

fn dkey(operation: &'static str, key: &[u8]) -> Result<Key> {
    Key::new(key).map_err(|error| Error::Size { operation, reason: error.to_string(), der: key_error(key) })
}

/// An empty key is a wrong argument, a long one has a number of its own.
fn key_error(key: &[u8]) -> Der {
    if key.is_empty() { Der::INVAL } else { Der::KEY2BIG }
}

fn value_key() -> Result<Key> {
    Key::new(VALUE).map_err(|error| Error::invalid("key-value", error))
}
