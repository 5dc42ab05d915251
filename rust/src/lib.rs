//! The C ABI of specdec's Rust half (specdec_rs.h documents every function). This file has what all functions of the
//! ABI share: ownership of buffers and handles, status codes, and the guard that stops panics. The other files do the
//! work; some of them also define functions of the ABI.

mod bounds;
mod charsmap;
mod depth;
mod grammar;
mod parquet;
mod python;
mod template;
mod tojson;
mod token_bytes;
mod tokenizer;

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Once;

use template::ChatTemplate;
use tokenizer::HfTokenizer;

const OK: i32 = 0;
const INTERNAL: i32 = 4;

/// The reason why a call failed; the values are the status codes of specdec_rs.h.
#[derive(Clone, Copy)]
pub enum Reason {
    Invalid = 1,
    Raised = 2,
    Limit = 3,
}

pub struct Failure {
    pub reason: Reason,
    pub message: String,
    /// For errors of templates: the line, the kind of error and the template's own words. Quotes nothing of the values
    /// that the template renders.
    pub place: String,
}

impl Failure {
    pub fn invalid(message: impl Into<String>) -> Failure {
        Failure { reason: Reason::Invalid, message: message.into(), place: String::new() }
    }
    pub fn limit(message: impl Into<String>) -> Failure {
        Failure { reason: Reason::Limit, message: message.into(), place: String::new() }
    }
}

#[repr(C)]
pub struct Bytes {
    data: *mut u8,
    size: usize,
}

#[repr(C)]
pub struct Ids {
    data: *mut u32,
    size: usize,
}

fn leak<T>(items: Vec<T>) -> (*mut T, usize) {
    let boxed = items.into_boxed_slice();
    let size = boxed.len();
    (Box::into_raw(boxed) as *mut T, size)
}

fn bytes_of(text: String) -> Bytes {
    let (data, size) = leak(text.into_bytes());
    Bytes { data, size }
}

fn say(message: *mut Bytes, text: String) {
    if !message.is_null() {
        // specdec_rs.h promises messages of one line.
        let line = text.replace(['\n', '\r'], " ");
        unsafe { message.write(bytes_of(line)) };
    }
}

pub fn text_of_panic(panic: Box<dyn std::any::Any + Send>) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| s.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "unknown panic".into())
}

/// Runs `work` and turns failures and panics into a status and a message. Silences the panic hook once, because a
/// library must not print.
fn guard(message: *mut Bytes, work: impl FnOnce() -> Result<(), Failure>) -> i32 {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| std::panic::set_hook(Box::new(|_| {})));
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => OK,
        Ok(Err(failure)) => {
            say(message, failure.message);
            failure.reason as i32
        }
        Err(panic) => {
            say(message, format!("internal failure: {}", text_of_panic(panic)));
            INTERNAL
        }
    }
}

/// Borrows a slice from C. A null pointer is accepted only with size 0.
unsafe fn slice<'a, T>(data: *const T, size: usize) -> Result<&'a [T], Failure> {
    match (data.is_null(), size) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Failure::invalid("null pointer with a size")),
        (false, _) => Ok(std::slice::from_raw_parts(data, size)),
    }
}

unsafe fn handle<'a, T>(pointer: *const T) -> Result<&'a T, Failure> {
    pointer.as_ref().ok_or_else(|| Failure::invalid("null handle"))
}

fn put<T>(out: *mut T, value: T) -> Result<(), Failure> {
    if out.is_null() {
        return Err(Failure::invalid("null out-parameter"));
    }
    unsafe { out.write(value) };
    Ok(())
}

fn utf8<'a>(bytes: &'a [u8], what: &str) -> Result<&'a str, Failure> {
    std::str::from_utf8(bytes)
        .map_err(|e| Failure::invalid(format!("{what}: invalid UTF-8 at byte {}", e.valid_up_to())))
}

#[no_mangle]
pub unsafe extern "C" fn sd_bytes_free(bytes: Bytes) {
    if !bytes.data.is_null() {
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(bytes.data, bytes.size)));
    }
}

#[no_mangle]
pub unsafe extern "C" fn sd_ids_free(ids: Ids) {
    if !ids.data.is_null() {
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(ids.data, ids.size)));
    }
}

#[no_mangle]
pub unsafe extern "C" fn sd_tokenizer_new(
    json: *const u8,
    size: usize,
    added: *const u8,
    added_size: usize,
    out: *mut *mut HfTokenizer,
    message: *mut Bytes,
) -> i32 {
    guard(message, || {
        let tokenizer = HfTokenizer::from_json(slice(json, size)?, slice(added, added_size)?)?;
        put(out, Box::into_raw(Box::new(tokenizer)))
    })
}

#[no_mangle]
pub unsafe extern "C" fn sd_tokenizer_free(tokenizer: *mut HfTokenizer) {
    if !tokenizer.is_null() {
        guard(std::ptr::null_mut(), || {
            drop(Box::from_raw(tokenizer));
            Ok(())
        });
    }
}

#[no_mangle]
pub unsafe extern "C" fn sd_tokenizer_encode(
    tokenizer: *const HfTokenizer,
    text: *const u8,
    size: usize,
    add_special: i32,
    out: *mut Ids,
    message: *mut Bytes,
) -> i32 {
    guard(message, || {
        let ids = handle(tokenizer)?.encode(utf8(slice(text, size)?, "text")?, add_special != 0)?;
        let (data, size) = leak(ids);
        put(out, Ids { data, size })
    })
}

#[no_mangle]
pub unsafe extern "C" fn sd_tokenizer_decode(
    tokenizer: *const HfTokenizer,
    ids: *const u32,
    count: usize,
    skip_special: i32,
    out: *mut Bytes,
    message: *mut Bytes,
) -> i32 {
    guard(message, || {
        let text = handle(tokenizer)?.decode(slice(ids, count)?, skip_special != 0)?;
        put(out, bytes_of(text))
    })
}

#[no_mangle]
pub unsafe extern "C" fn sd_tokenizer_vocab_size(tokenizer: *const HfTokenizer, out: *mut u64) -> i32 {
    guard(std::ptr::null_mut(), || put(out, handle(tokenizer)?.vocab_size() as u64))
}

#[no_mangle]
pub unsafe extern "C" fn sd_tokenizer_token_to_id(
    tokenizer: *const HfTokenizer,
    token: *const u8,
    size: usize,
    out: *mut i64,
) -> i32 {
    guard(std::ptr::null_mut(), || {
        let id = handle(tokenizer)?.token_to_id(utf8(slice(token, size)?, "token")?);
        put(out, id.map_or(-1, i64::from))
    })
}

#[no_mangle]
pub unsafe extern "C" fn sd_tokenizer_id_to_token(
    tokenizer: *const HfTokenizer,
    id: u32,
    special: *mut i32,
    out: *mut Bytes,
) -> i32 {
    guard(std::ptr::null_mut(), || {
        let (token, is_special) = handle(tokenizer)?.id_to_token(id).ok_or_else(|| Failure::invalid("no such id"))?;
        put(special, i32::from(is_special))?;
        put(out, bytes_of(token))
    })
}

#[no_mangle]
pub unsafe extern "C" fn sd_tokenizer_streaming(tokenizer: *const HfTokenizer, out: *mut i32) -> i32 {
    guard(std::ptr::null_mut(), || put(out, handle(tokenizer)?.streaming() as i32))
}

#[no_mangle]
pub unsafe extern "C" fn sd_template_new(
    source: *const u8,
    size: usize,
    clock: Option<template::Strftime>,
    out: *mut *mut ChatTemplate,
    message: *mut Bytes,
) -> i32 {
    guard(message, || {
        let chat_template = ChatTemplate::compile(utf8(slice(source, size)?, "template")?, clock)?;
        put(out, Box::into_raw(Box::new(chat_template)))
    })
}

#[no_mangle]
pub unsafe extern "C" fn sd_template_free(chat_template: *mut ChatTemplate) {
    if !chat_template.is_null() {
        guard(std::ptr::null_mut(), || {
            drop(Box::from_raw(chat_template));
            Ok(())
        });
    }
}

#[no_mangle]
pub unsafe extern "C" fn sd_template_render(
    chat_template: *const ChatTemplate,
    context: *const u8,
    size: usize,
    max_output: usize,
    out: *mut Bytes,
    message: *mut Bytes,
    place: *mut Bytes,
) -> i32 {
    guard(message, || {
        let rendered = handle(chat_template)?.render(slice(context, size)?, max_output);
        let text = rendered.inspect_err(|failure| say(place, failure.place.clone()))?;
        put(out, bytes_of(text))
    })
}
