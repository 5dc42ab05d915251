//! Reads the rows of a Parquet file as lines of JSON, through the row interface of the parquet crate: without Arrow,
//! one batch of rows at a time.

use std::ffi::c_void;
use std::fs::File;
use std::io::Write;

use ::parquet::errors::ParquetError;
use ::parquet::file::metadata::RowGroupMetaData;
use ::parquet::file::reader::{FileReader, SerializedFileReader};
use ::parquet::record::reader::RowIter;
use ::parquet::record::{Field, Row};
use chrono::DateTime;

use crate::{guard, slice, utf8, Bytes, Failure};

/// Receives whole lines, and how many bytes of the file have been read so far. A result other than 0 stops the reading.
pub type Sink = unsafe extern "C" fn(context: *mut c_void, lines: *const u8, size: usize, stored_done: u64) -> i32;

const FLUSH_BYTES: usize = 256 << 10;
/// Largest batch of rows, in bytes according to the file's own metadata; all pages of a batch are in memory at once.
const BATCH_BYTES: i64 = 32 << 20;
const MAX_BATCH_ROWS: i64 = 1024;
/// Maximum bytes of JSON per byte of the file. Repeated prompts compress to almost nothing; a decompression bomb
/// exceeds this factor by orders of magnitude.
const MAX_EXPANSION: u64 = 100_000;

pub fn write_rows(path: &str, sink: Sink, context: *mut c_void) -> Result<(), Failure> {
    let file = File::open(path).map_err(|e| Failure::invalid(e.to_string()))?;
    let stored = file.metadata().map_err(|e| Failure::invalid(e.to_string()))?.len();
    let reader = SerializedFileReader::new(file).map_err(failure)?;
    let mut lines = Vec::with_capacity(2 * FLUSH_BYTES);
    let (mut done, mut written) = (0u64, 0u64);
    let mut flush = |lines: &mut Vec<u8>, done: u64| {
        written += lines.len() as u64;
        if written > stored.saturating_mul(MAX_EXPANSION) {
            return Err(Failure::limit(format!(
                "more than {MAX_EXPANSION} times the size of the file as rows: split the file if it is no attack"
            )));
        }
        let stop = unsafe { sink(context, lines.as_ptr(), lines.len(), done.min(stored)) };
        lines.clear();
        if stop == 0 {
            Ok(())
        } else {
            Err(Failure::invalid("stopped by the reader of the rows"))
        }
    };
    for index in 0..reader.num_row_groups() {
        let group = reader.get_row_group(index).map_err(failure)?;
        let (rows, size) = (group.metadata().num_rows().max(1), group.metadata().compressed_size().max(0) as u64);
        let mut read = 0u64;
        for row in RowIter::from_row_group(None, group.as_ref())
            .map_err(failure)?
            .with_batch_size(batch_rows(group.metadata()))
        {
            append_row(&mut lines, &row.map_err(failure)?, true);
            lines.push(b'\n');
            read += 1;
            if lines.len() >= FLUSH_BYTES {
                flush(&mut lines, done + (size as u128 * read as u128 / rows as u128) as u64)?;
            }
        }
        done = done.saturating_add(size);
    }
    flush(&mut lines, stored)
}

fn batch_rows(group: &RowGroupMetaData) -> usize {
    let row_bytes = group.total_byte_size().max(0) / group.num_rows().max(1) + 1;
    (BATCH_BYTES / row_bytes).clamp(1, MAX_BATCH_ROWS) as usize
}

fn failure(error: ParquetError) -> Failure {
    Failure::invalid(error.to_string())
}

/// Appends a row, or a struct inside a row, as a JSON object. A null in a struct is left out (`nulls` false): Arrow
/// gives every struct the keys of all rows, so most nulls stand for keys that the row never had. The top-level columns
/// of a row are all written.
fn append_row(out: &mut Vec<u8>, row: &Row, nulls: bool) {
    out.push(b'{');
    let shown = row.get_column_iter().filter(|(_, field)| nulls || !matches!(field, Field::Null));
    for (i, (name, field)) in shown.enumerate() {
        if i > 0 {
            out.push(b',');
        }
        append(out, name.as_str());
        out.push(b':');
        append_field(out, field);
    }
    out.push(b'}');
}

/// Appends strings, numbers, true, false and null as JSON; NaN and infinities become null.
fn append<T: serde::Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    serde_json::to_writer(out, value).expect("writing to memory");
}

fn append_field(out: &mut Vec<u8>, field: &Field) {
    match field {
        Field::Null => append(out, &()),
        Field::Bool(v) => append(out, v),
        Field::Byte(v) => append(out, v),
        Field::Short(v) => append(out, v),
        Field::Int(v) => append(out, v),
        Field::Long(v) => append(out, v),
        Field::UByte(v) => append(out, v),
        Field::UShort(v) => append(out, v),
        Field::UInt(v) => append(out, v),
        Field::ULong(v) => append(out, v),
        Field::Float16(v) => append(out, &f32::from(*v)),
        Field::Float(v) => append(out, v),
        Field::Double(v) => append(out, v),
        Field::Str(v) => append(out, v.as_str()),
        Field::Bytes(v) => append_bytes(out, v.data()),
        Field::TimestampMillis(v) => append_time(out, *v, DateTime::from_timestamp_millis(*v)),
        Field::TimestampMicros(v) => append_time(out, *v, DateTime::from_timestamp_micros(*v)),
        Field::Date(v) => append_time(out, i64::from(*v), DateTime::from_timestamp(i64::from(*v) * 86400, 0)),
        // Written as text, because a double would lose digits.
        Field::Decimal(_) | Field::TimeMillis(_) | Field::TimeMicros(_) => append(out, &field.to_string()),
        Field::Group(row) => append_row(out, row, false),
        Field::ListInternal(list) => {
            out.push(b'[');
            for (i, item) in list.elements().iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                append_field(out, item);
            }
            out.push(b']');
        }
        Field::MapInternal(map) => {
            out.push(b'{');
            for (i, (key, value)) in map.entries().iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                append_key(out, key);
                out.push(b':');
                append_field(out, value);
            }
            out.push(b'}');
        }
    }
}

/// Appends a key. JSON keys are strings, so a key of another type is written as its JSON text.
fn append_key(out: &mut Vec<u8>, key: &Field) {
    let mut json = Vec::new();
    append_field(&mut json, key);
    if json.first() == Some(&b'"') {
        let _ = out.write_all(&json);
    } else {
        append(out, &String::from_utf8_lossy(&json));
    }
}

/// Appends bytes as text if they are UTF-8, because some writers store text without the UTF8 annotation (ClickHouse, by
/// a setting), else as base64.
fn append_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => append(out, text),
        Err(_) => append(out, &base64::encode(bytes)),
    }
}

/// Appends the time as ISO 8601 in UTC; a time that `DateTime` cannot represent stays a number.
fn append_time(out: &mut Vec<u8>, number: i64, time: Option<DateTime<chrono::Utc>>) {
    match time {
        Some(t) => append(out, &t.format("%Y-%m-%dT%H:%M:%S%.fZ").to_string()),
        None => append(out, &number),
    }
}

#[no_mangle]
pub unsafe extern "C" fn sd_parquet_rows(
    path: *const u8,
    size: usize,
    sink: Option<Sink>,
    context: *mut c_void,
    message: *mut Bytes,
) -> i32 {
    guard(message, || {
        let sink = sink.ok_or_else(|| Failure::invalid("null sink"))?;
        write_rows(utf8(slice(path, size)?, "path")?, sink, context)
    })
}
