//! Chat templates with the functions that transformers 5 offers to them (utils/chat_template_utils.py), in a bounded
//! interpreter.

use std::ffi::{c_char, CString};
use std::io::{self, Write};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{from_args, Kwargs, Value, ValueKind};
use minijinja::{escape_formatter, AutoEscape, Environment, Error, ErrorKind, State, UndefinedBehavior};
use minijinja_contrib::pycompat;

use crate::{Failure, Reason};

const MAX_SOURCE_BYTES: usize = 1 << 20;
const MAX_JSON_BYTES: usize = 1 << 20;
const MAX_JSON_DEPTH: usize = 64;
const MAX_INDENT: usize = 1 << 10;
const FUEL: u64 = 1_000_000;
const RECURSION: usize = 100;
const NAME: &str = "chat_template";
/// Begins the text of an error made by raise_exception. It is stripped only once, so that a message that begins with
/// the same characters keeps them.
const RAISED: &str = "\u{1}raised:";

pub type Strftime = unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> usize;

pub struct ChatTemplate {
    environment: Environment<'static>,
}

impl ChatTemplate {
    /// Compiles a template. A source can make the compiler overflow its stack (a chain of 50,000 operators), fold
    /// constants of any size or take quadratic time. No setting bounds this, so compile an untrusted source in a child
    /// process first (text/chat_template.cpp, vet_template).
    pub fn compile(source: &str, clock: Option<Strftime>) -> Result<ChatTemplate, Failure> {
        if source.len() > MAX_SOURCE_BYTES {
            return Err(Failure::invalid(format!("{} bytes, at most {MAX_SOURCE_BYTES} are accepted", source.len())));
        }
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(failure)?;
        environment.set_syntax(syntax);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(RECURSION);
        environment.set_unknown_method_callback(python_method);
        environment.set_formatter(|out, state, value| match as_float(value) {
            Some(x) => out.write_str(&python_float(x)).map_err(Error::from),
            None => escape_formatter(out, state, value),
        });
        environment.add_filter("tojson", tojson);
        for name in ["e", "escape"] {
            environment.add_filter(name, |value: &Value| escape(&value.to_string()));
        }
        environment.add_filter("string", |value: &Value| as_float(value).map_or_else(|| value.to_string(), python_float));
        environment.add_filter("wordcount", |text: String| text.split(|c: char| !is_word(c)).filter(|w| !w.is_empty()).count());
        environment.add_filter("indent", indent);
        // minijinja counts none as an empty list; templates ask `tools is iterable` before they take its length.
        environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
        environment.add_function("raise_exception", |message: Value| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, format!("{RAISED}{message}")))
        });
        environment.add_function("strftime_now", move |format: String| strftime(clock, &format));
        environment.add_template_owned(NAME, without_generation_tags(source)).map_err(failure)?;
        Ok(ChatTemplate { environment })
    }

    pub fn render(&self, context: &[u8], max_output: usize) -> Result<String, Failure> {
        let context: Value = serde_json::from_slice(context).map_err(|e| Failure::invalid(format!("context: {e}")))?;
        let mut out = Bounded { text: Vec::new(), limit: max_output, exceeded: false };
        let template = self.environment.get_template(NAME).map_err(failure)?;
        let result = template.render_captured_to(context, &mut out).map(|_| ());
        if out.exceeded {
            return Err(Failure::limit(format!("output: more than {max_output} bytes")));
        }
        result.map_err(failure)?;
        String::from_utf8(out.text).map_err(|_| Failure::invalid("output is not UTF-8"))
    }
}

struct Bounded {
    text: Vec<u8>,
    limit: usize,
    exceeded: bool,
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.limit.saturating_sub(self.text.len()) {
            self.exceeded = true;
            return Err(io::Error::other("output limit"));
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Converts an error to one line with place and reason. If the error or its innermost cause comes from raise_exception,
/// the message is the argument of that call.
fn failure(error: Error) -> Failure {
    if let Some(message) = error.detail().and_then(|d| d.strip_prefix(RAISED)) {
        return Failure { reason: Reason::Raised, message: message.to_string() };
    }
    let mut cause: &dyn std::error::Error = &error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    if let Some(inner) = cause.downcast_ref::<Error>() {
        if let Some(message) = inner.detail().and_then(|d| d.strip_prefix(RAISED)) {
            return Failure { reason: Reason::Raised, message: message.to_string() };
        }
    }
    let place = error.line().map_or(String::new(), |line| format!("line {line}: "));
    let reason = match error.kind() {
        ErrorKind::OutOfFuel => return Failure::limit(format!("{place}more than {FUEL} steps")),
        kind => kind.to_string(),
    };
    let detail = error.detail().map_or(String::new(), |d| format!(": {d}"));
    if detail.contains("recursion limit") || detail.contains("too deep") {
        return Failure::limit(format!("{place}{reason}{detail}"));
    }
    Failure::invalid(format!("{place}{reason}{detail}"))
}

/// Replaces `{% generation %}` … `{% endgeneration %}`, with which transformers marks assistant text, by a `with`
/// block, which has the same scope. The text inside is unchanged.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let inner = &tag[2..end];
        let name = inner.trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim();
        match name {
            "generation" => out.push_str(&format!("{{%{}%}}", inner.replace("generation", "with"))),
            "endgeneration" => out.push_str(&format!("{{%{}%}}", inner.replace("endgeneration", "endwith"))),
            _ => out.push_str(&tag[..end + 2]),
        }
        rest = &tag[end + 2..];
    }
    out.push_str(rest);
    out
}

fn strftime(clock: Option<Strftime>, format: &str) -> Result<String, Error> {
    let clock = clock.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "strftime_now: no clock"))?;
    let c_format = CString::new(format).map_err(|_| Error::new(ErrorKind::InvalidOperation, "strftime_now: NUL in the format"))?;
    let mut buffer = vec![0u8; 4096];
    let size = unsafe { clock(c_format.as_ptr(), buffer.as_mut_ptr() as *mut c_char, buffer.len()) };
    if size > buffer.len() {
        return Err(Error::new(ErrorKind::InvalidOperation, "strftime_now: the result is too long"));
    }
    buffer.truncate(size);
    Ok(String::from_utf8_lossy(&buffer).into_owned())
}

/// Adds the Python methods that templates on the Hub call but minijinja-contrib lacks.
fn python_method(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    if let (ValueKind::String, Some(s)) = (value.kind(), value.as_str()) {
        match method {
            // minijinja capitalises only after white space, Python after anything that is not a letter.
            "title" if args.is_empty() => {
                let mut out = String::with_capacity(s.len());
                let mut inside = false;
                for c in s.chars() {
                    if inside {
                        out.extend(c.to_lowercase());
                    } else {
                        out.extend(c.to_uppercase());
                    }
                    inside = c.is_alphabetic();
                }
                return Ok(Value::from(out));
            }
            "removeprefix" => {
                let (prefix,): (&str,) = from_args(args)?;
                return Ok(Value::from(s.strip_prefix(prefix).unwrap_or(s)));
            }
            "removesuffix" => {
                let (suffix,): (&str,) = from_args(args)?;
                return Ok(Value::from(s.strip_suffix(suffix).unwrap_or(s)));
            }
            "partition" => {
                let (separator,): (&str,) = from_args(args)?;
                let (head, middle, tail) = match s.split_once(separator) {
                    Some((head, tail)) => (head, separator, tail),
                    None => (s, "", ""),
                };
                return Ok(strings([head, middle, tail]));
            }
            "rpartition" => {
                let (separator,): (&str,) = from_args(args)?;
                let (head, middle, tail) = match s.rsplit_once(separator) {
                    Some((head, tail)) => (head, separator, tail),
                    None => ("", "", s),
                };
                return Ok(strings([head, middle, tail]));
            }
            "rsplit" => {
                let (separator, limit): (&str, Option<i64>) = from_args(args)?;
                let limit = limit.unwrap_or(-1);
                let mut pieces: Vec<&str> =
                    if limit < 0 { s.rsplit(separator).collect() } else { s.rsplitn(limit as usize + 1, separator).collect() };
                pieces.reverse();
                return Ok(strings(pieces));
            }
            _ => {}
        }
    }
    pycompat::unknown_method_callback(state, value, method, args)
}

/// Writes the entities that Jinja does. minijinja has others, and escapes a slash, too.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    out
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn as_float(value: &Value) -> Option<f64> {
    let float = value.kind() == ValueKind::Number && !value.is_integer();
    float.then(|| f64::try_from(value.clone()).ok()).flatten()
}

/// Returns a float as Python's repr does: shortest digits, exponent form from 1e16 and below 1e-4.
fn python_float(x: f64) -> String {
    if !x.is_finite() {
        return if x.is_nan() { "nan" } else if x > 0.0 { "inf" } else { "-inf" }.to_string();
    }
    if x != 0.0 && !(1e-4..1e16).contains(&x.abs()) {
        let text = format!("{x:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, size) = exponent.strip_prefix('-').map_or(('+', exponent), |rest| ('-', rest));
        return format!("{digits}e{sign}{size:0>2}");
    }
    let text = x.to_string();
    if text.contains('.') { text } else { text + ".0" }
}

fn strings<'a>(items: impl IntoIterator<Item = &'a str>) -> Value {
    items.into_iter().map(Value::from).collect()
}

/// Implements `indent` as Jinja does, which keeps a newline at the end of the text. minijinja removes it.
fn indent(text: &str, width: Option<&Value>, first: Option<bool>, blank: Option<bool>, named: Kwargs) -> Result<String, Error> {
    let width = named.get::<Option<Value>>("width")?.or(width.cloned());
    let first = named.get::<Option<bool>>("first")?.or(first).unwrap_or(false);
    let blank = named.get::<Option<bool>>("blank")?.or(blank).unwrap_or(false);
    named.assert_all_used()?;
    let indention = match &width {
        None => " ".repeat(4),
        Some(width) => match (width.as_str(), width.as_usize()) {
            (Some(text), _) => text.to_string(),
            (None, Some(count)) if count <= MAX_INDENT => " ".repeat(count),
            _ => return Err(Error::new(ErrorKind::InvalidOperation, format!("indent: {width} is no width"))),
        },
    };
    // As Python's str.splitlines().
    let is_break = |c: char| matches!(c, '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}');
    let text = text.replace("\r\n", "\n");
    let mut out = String::new();
    for (index, line) in text.split(is_break).enumerate() {
        if index > 0 {
            out.push('\n');
        }
        let indented = if index == 0 { first } else { blank || !line.is_empty() };
        if indented {
            out.push_str(&indention);
        }
        out.push_str(line);
        if out.len() > MAX_JSON_BYTES {
            return Err(Error::new(ErrorKind::InvalidOperation, format!("indent: more than {MAX_JSON_BYTES} bytes")));
        }
    }
    Ok(out)
}

/// Implements `tojson` as transformers overrides it: json.dumps with ensure_ascii=False, nothing escaped for HTML.
fn tojson(value: &Value, kwargs: Kwargs) -> Result<String, Error> {
    let indent = match kwargs.get::<Option<Value>>("indent")? {
        None => None,
        Some(v) if v.is_none() => None,
        Some(v) => Some(v.as_usize().filter(|n| *n <= 64).ok_or_else(|| json_error("indent: expected 0 to 64"))?),
    };
    let ensure_ascii = kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sort_keys = kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let separators: Option<Value> = kwargs.get("separators")?;
    kwargs.assert_all_used()?;
    let (item, key) = match separators.filter(|s| !s.is_none()) {
        None => (if indent.is_some() { "," } else { ", " }.to_string(), ": ".to_string()),
        Some(pair) => {
            let parts: Vec<String> = pair.try_iter()?.map(|v| v.to_string()).take(3).collect();
            let [item, key] = <[String; 2]>::try_from(parts).map_err(|_| json_error("separators: expected two strings"))?;
            (item, key)
        }
    };
    let mut writer = Json { out: String::new(), indent, ensure_ascii, sort_keys, item, key };
    writer.value(value, 0)?;
    Ok(writer.out)
}

fn json_error(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::BadSerialization, message)
}

struct Json {
    out: String,
    indent: Option<usize>,
    ensure_ascii: bool,
    sort_keys: bool,
    item: String,
    key: String,
}

impl Json {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_JSON_DEPTH {
            return Err(json_error(format!("tojson: nested deeper than {MAX_JSON_DEPTH}")));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Map => self.map(value, depth)?,
            ValueKind::Seq | ValueKind::Iterable => {
                let mut empty = true;
                self.out.push('[');
                for element in value.try_iter()? {
                    self.separate(&mut empty, depth + 1)?;
                    self.value(&element, depth + 1)?;
                }
                self.close(empty, depth, ']');
            }
            kind => return Err(json_error(format!("tojson: {kind} cannot be written as JSON"))),
        }
        Ok(())
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.sort_keys {
            keys.sort();
        }
        let mut empty = true;
        self.out.push('{');
        for key in keys {
            self.separate(&mut empty, depth + 1)?;
            // Python writes keys of other scalar types as their JSON text, in quotes.
            match key.kind() {
                ValueKind::String => self.string(key.as_str().unwrap_or_default()),
                ValueKind::None => self.out.push_str("\"null\""),
                ValueKind::Bool => self.string(if key.is_true() { "true" } else { "false" }),
                _ => self.string(&key.to_string()),
            }
            let separator = self.key.clone();
            self.out.push_str(&separator);
            self.value(&value.get_item(&key)?, depth + 1)?;
        }
        self.close(empty, depth, '}');
        Ok(())
    }

    fn separate(&mut self, empty: &mut bool, depth: usize) -> Result<(), Error> {
        if self.out.len() > MAX_JSON_BYTES {
            return Err(json_error(format!("tojson: more than {MAX_JSON_BYTES} bytes")));
        }
        if !*empty {
            let separator = self.item.clone();
            self.out.push_str(&separator);
        }
        *empty = false;
        self.new_line(depth);
        Ok(())
    }

    fn close(&mut self, empty: bool, depth: usize, bracket: char) {
        if !empty {
            self.new_line(depth);
        }
        self.out.push(bracket);
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(width) = self.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', width * depth));
        }
    }

    fn number(&mut self, value: &Value) {
        if value.is_integer() {
            self.out.push_str(&value.to_string());
            return;
        }
        let x = f64::try_from(value.clone()).unwrap_or(f64::NAN);
        if x.is_finite() {
            self.out.push_str(&python_float(x));
        } else {
            self.out.push_str(if x.is_nan() { "NaN" } else if x > 0.0 { "Infinity" } else { "-Infinity" });
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if (c as u32) < 0x20 || (self.ensure_ascii && (c as u32) > 0x7e) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}
