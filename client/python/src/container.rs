//! Containers, and their key-value objects and arrays.

use std::collections::BTreeMap;
use std::sync::Arc;

use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use weir_client::array::Range;
use weir_client::{
    Array, ArrayAttributes, Conditions, ContainerProperties, ContainerType, Context, Hints, Kv, ObjectClass,
    ObjectId, Pool, Rights,
};
use weir_proto::Der;
use weir_runtime::join_all;

use crate::failure::Failure;
use crate::keys::Keys;
use crate::station;

/// Values of one call that are under way at a time.
const TOGETHER: usize = 64;

/// Names of containers' types.
const POSIX: &str = "posix";
const OBJECT: &str = "object";

/// An object's id, as Python has it: high and low half.
pub type Id = (u64, u64);

/// Chunk and cell size of an array, as Python has it: bytes of a cell, cells of a chunk.
type Shape = (u32, u64);

/// What is open.
pub struct Opened {
    /// The pool.
    pub pool: Pool,
    /// The container.
    pub container: weir_client::Container,
}

/// An open container.
#[pyclass(module = "weir._native", frozen)]
pub struct Container {
    pub(crate) opened: Arc<Opened>,
    pub(crate) attach: Option<String>,
    /// The process that opened it, and closes it.
    process: u32,
}

fn rights(read_only: bool) -> Rights {
    if read_only { Rights::READ } else { Rights::READ.union(Rights::WRITE) }
}

const fn id_of((hi, lo): Id) -> ObjectId {
    ObjectId { hi, lo }
}

/// The class of a name.
fn class_of(name: Option<&str>) -> Result<Option<ObjectClass>, Failure> {
    let parse = |name: &str| {
        ObjectClass::parse_supported(name).map_err(|error| {
            Failure::Object(weir_client::Error::Invalid {
                operation: "object class",
                reason: error.to_string(),
            })
        })
    };
    name.map(parse).transpose()
}

/// Creates a container, or finds the equal one that is there.
#[pyfunction]
#[pyo3(signature = (pool, label, kind="object", object_class="", chunk_size=1 << 20, attach=None))]
pub fn create_container(
    py: Python<'_>,
    pool: String,
    label: String,
    kind: &str,
    object_class: &str,
    chunk_size: u64,
    attach: Option<String>,
) -> PyResult<()> {
    let kind = match kind {
        POSIX => ContainerType::Posix,
        OBJECT => ContainerType::Object,
        _ => {
            return Err(PyValueError::new_err(format!(
                "a container is \"posix\" or \"object\", not \"{kind}\""
            )));
        }
    };
    let object_class = object_class.to_owned();
    station::run(py, attach.as_deref(), async move |context: Context| {
        let wanted = rights(false).union(Rights::CREATE_CONTAINER);
        let pool = Pool::connect(&context, &pool, wanted).await?;
        let object_class =
            if object_class.is_empty() { pool.object_class().to_owned() } else { object_class };
        let properties = ContainerProperties {
            label,
            kind,
            quota: 0,
            object_class,
            chunk_size,
            uid: 0,
            gid: 0,
            mode: 0o777,
            attributes: BTreeMap::new(),
        };
        let made = weir_client::Container::create(&context, &pool, properties, false).await;
        // What was made counts, whatever becomes of the handle.
        let _ = pool.disconnect(&context).await;
        made.map(drop).map_err(Failure::from)
    })
}

impl Container {
    /// Runs an operation on what is open.
    pub(crate) fn run<T, F>(&self, py: Python<'_>, work: F) -> PyResult<T>
    where
        T: Send + 'static,
        F: AsyncFnOnce(Context, Arc<Opened>) -> Result<T, Failure> + Send + 'static,
    {
        let opened = Arc::clone(&self.opened);
        station::run(py, self.attach.as_deref(), async move |context: Context| work(context, opened).await)
    }

    fn run_array<T, F>(&self, py: Python<'_>, id: Id, (cell_size, chunk_cells): Shape, work: F) -> PyResult<T>
    where
        T: Send + 'static,
        F: AsyncFnOnce(Context, Array) -> Result<T, Failure> + Send + 'static,
    {
        self.run(py, async move |context, opened| {
            let attributes = ArrayAttributes { cell_size, chunk_cells };
            let array = Array::shared(&opened.container, id_of(id), attributes)?;
            work(context, array).await
        })
    }
}

/// Bytes of anything that has a buffer. Copied, so that the operation needs neither the lock nor the caller's memory.
pub fn bytes_of(value: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    if let Ok(bytes) = value.cast::<PyBytes>() {
        return Ok(bytes.as_bytes().to_vec());
    }
    let py = value.py();
    let view = py.import("builtins")?.getattr("memoryview")?.call1((value,))?;
    if !view.getattr("c_contiguous")?.extract::<bool>()? {
        return Err(PyBufferError::new_err("the buffer is not contiguous in C order"));
    }
    let flat = view.call_method1("cast", ("B",))?;
    pyo3::buffer::PyBuffer::<u8>::get(&flat)?.to_vec(py)
}

#[pymethods]
impl Container {
    /// Connects to a pool and opens a container.
    #[new]
    #[pyo3(signature = (pool, container, read_only=false, attach=None))]
    fn new(
        py: Python<'_>,
        pool: String,
        container: String,
        read_only: bool,
        attach: Option<String>,
    ) -> PyResult<Self> {
        let opened = station::run(py, attach.as_deref(), async move |context: Context| {
            let pool = Pool::connect(&context, &pool, rights(read_only)).await?;
            match weir_client::Container::open(&context, &pool, &container, rights(read_only)).await {
                Ok(container) => Ok(Opened { pool, container }),
                Err(error) => {
                    // The error counts, whatever becomes of the handle.
                    let _ = pool.disconnect(&context).await;
                    Err(error.into())
                }
            }
        })?;
        Ok(Self { opened: Arc::new(opened), attach, process: std::process::id() })
    }

    /// Gives the handles back, in the process that got them.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.process != std::process::id() {
            return Ok(());
        }
        self.run(py, async |context, opened| {
            opened.container.close(&context).await?;
            Ok(opened.pool.disconnect(&context).await?)
        })
    }

    /// Label of the container.
    #[getter]
    fn label(&self) -> &str {
        &self.opened.container.properties().label
    }

    /// Label of its pool.
    #[getter]
    fn pool(&self) -> &str {
        self.opened.pool.label()
    }

    /// "posix" or "object".
    #[getter]
    fn kind(&self) -> &'static str {
        match self.opened.container.properties().kind {
            ContainerType::Posix => POSIX,
            ContainerType::Object => OBJECT,
        }
    }

    /// An id that no other object has, of this type and class.
    #[pyo3(signature = (kind, object_class=None))]
    fn new_object(&self, py: Python<'_>, kind: u8, object_class: Option<String>) -> PyResult<Id> {
        self.run(py, async move |context, opened| {
            let class = class_of(object_class.as_deref())?;
            let id = opened.container.new_object_id(&context, kind, class).await?;
            Ok((id.hi, id.lo))
        })
    }

    /// The id of a number that the caller has chosen, with type and class in it.
    #[pyo3(signature = (id, kind, object_class=None))]
    fn object_id(&self, id: Id, kind: u8, object_class: Option<&str>) -> PyResult<Id> {
        let class = class_of(object_class)?;
        let id = self
            .opened
            .container
            .encode_object_id(id_of(id), kind, class, Hints::NONE)
            .map_err(Failure::from)?;
        Ok((id.hi, id.lo))
    }

    /// Removes an object with all that is in it.
    fn destroy_object(&self, py: Python<'_>, id: Id) -> PyResult<()> {
        self.run(py, async move |context, opened| {
            let object = weir_client::Object::open(&opened.container, id_of(id))?;
            Ok(object.punch(&context).await?)
        })
    }

    /// Stores a value. With `insert`, returns whether the key was new; one that is there keeps its value.
    #[pyo3(signature = (id, key, value, insert=false))]
    fn put(
        &self,
        py: Python<'_>,
        id: Id,
        key: Vec<u8>,
        value: &Bound<'_, PyAny>,
        insert: bool,
    ) -> PyResult<bool> {
        let value = bytes_of(value)?;
        self.run(py, async move |context, opened| {
            let kv = Kv::open(&opened.container, id_of(id))?;
            let conditions = if insert { Conditions::DKEY_INSERT } else { Conditions::NONE };
            match kv.put(&context, &key, &value, conditions).await {
                Err(error) if insert && error.is(Der::EXIST) => Ok(false),
                put => put.map(|()| true).map_err(Failure::from),
            }
        })
    }

    /// The value of a key, or nothing.
    fn get<'py>(&self, py: Python<'py>, id: Id, key: Vec<u8>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let found = self.run(py, async move |context, opened| {
            Ok(Kv::open(&opened.container, id_of(id))?.get(&context, &key).await?)
        })?;
        Ok(found.map(|value| PyBytes::new(py, &value)))
    }

    /// Removes a key; whether it was there.
    fn remove(&self, py: Python<'_>, id: Id, key: Vec<u8>) -> PyResult<bool> {
        self.run(py, async move |context, opened| {
            let kv = Kv::open(&opened.container, id_of(id))?;
            match kv.remove(&context, &key, Conditions::PUNCH).await {
                Err(error) if error.is(Der::NONEXIST) => Ok(false),
                removed => removed.map(|()| true).map_err(Failure::from),
            }
        })
    }

    /// Stores values, many at a time.
    fn put_many(&self, py: Python<'_>, id: Id, pairs: Vec<(Vec<u8>, Bound<'_, PyAny>)>) -> PyResult<()> {
        let pairs: PyResult<Vec<(Vec<u8>, Vec<u8>)>> =
            pairs.into_iter().map(|(key, value)| Ok((key, bytes_of(&value)?))).collect();
        let pairs = pairs?;
        self.run(py, async move |context, opened| {
            let kv = Kv::open(&opened.container, id_of(id))?;
            for some in pairs.chunks(TOGETHER) {
                let puts = some.iter().map(|(key, value)| kv.put(&context, key, value, Conditions::NONE));
                for put in join_all(puts).await {
                    put?;
                }
            }
            Ok(())
        })
    }

    /// The values of keys, many at a time; nothing for those that are not there.
    fn get_many<'py>(
        &self,
        py: Python<'py>,
        id: Id,
        keys: Vec<Vec<u8>>,
    ) -> PyResult<Vec<Option<Bound<'py, PyBytes>>>> {
        let found = self.run(py, async move |context, opened| {
            let kv = Kv::open(&opened.container, id_of(id))?;
            let mut found = Vec::with_capacity(keys.len());
            for some in keys.chunks(TOGETHER) {
                for value in join_all(some.iter().map(|key| kv.get(&context, key))).await {
                    found.push(value?);
                }
            }
            Ok(found)
        })?;
        Ok(found.into_iter().map(|value| value.map(|value| PyBytes::new(py, &value))).collect())
    }

    /// The keys of an object, page by page.
    fn keys(&self, id: Id) -> PyResult<Keys> {
        let kv = Kv::open(&self.opened.container, id_of(id)).map_err(Failure::from)?;
        Ok(Keys::new(kv, self.attach.clone()))
    }

    /// Writes cells of an array from `index` on.
    fn write_array(
        &self,
        py: Python<'_>,
        id: Id,
        shape: Shape,
        index: u64,
        data: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let data = bytes_of(data)?;
        let cell = u64::from(shape.0);
        if cell == 0 || !(data.len() as u64).is_multiple_of(cell) {
            return Err(PyValueError::new_err(format!("{} bytes are no cells of {cell} bytes", data.len())));
        }
        let range = Range { index, count: data.len() as u64 / cell };
        self.run_array(py, id, shape, async move |context, array| {
            Ok(array.write(&context, &[range], &[&data]).await.map(drop)?)
        })
    }

    /// Reads cells of an array from `index` on. What was never written is zero.
    fn read_array<'py>(
        &self,
        py: Python<'py>,
        id: Id,
        shape: Shape,
        index: u64,
        count: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = count.checked_mul(u64::from(shape.0)).and_then(|bytes| usize::try_from(bytes).ok());
        let bytes = bytes.filter(|bytes| isize::try_from(*bytes).is_ok());
        let bytes =
            bytes.ok_or_else(|| PyValueError::new_err(format!("{count} cells are beyond any memory")))?;
        let data = self.run_array(py, id, shape, async move |context, array| {
            let mut data = vec![0; bytes];
            if !data.is_empty() {
                array.read(&context, &[Range { index, count }], vec![&mut data], None).await?;
            }
            Ok(data)
        })?;
        Ok(PyBytes::new(py, &data))
    }

    /// Cells of an array.
    fn array_size(&self, py: Python<'_>, id: Id, shape: Shape) -> PyResult<u64> {
        self.run_array(py, id, shape, async |context, array| Ok(array.size(&context).await?))
    }

    /// Cuts an array off, or lengthens it.
    fn resize_array(&self, py: Python<'_>, id: Id, shape: Shape, size: u64) -> PyResult<()> {
        self.run_array(py, id, shape, async move |context, array| Ok(array.set_size(&context, size).await?))
    }
}
