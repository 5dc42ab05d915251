//! Implements the filter `tojson` of chat templates.

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};

use crate::python;

const MAX_JSON_BYTES: usize = 1 << 20;
const MAX_JSON_DEPTH: usize = 64;

/// Implements `tojson` as transformers overrides it: json.dumps with ensure_ascii=False, and no escaping for HTML.
pub fn tojson(value: &Value, kwargs: Kwargs) -> Result<String, Error> {
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
            let [item, key] =
                <[String; 2]>::try_from(parts).map_err(|_| json_error("separators: expected two strings"))?;
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
            self.out.push_str(&python::float_text(x));
        } else {
            self.out.push_str(if x.is_nan() {
                "NaN"
            } else if x > 0.0 {
                "Infinity"
            } else {
                "-Infinity"
            });
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
