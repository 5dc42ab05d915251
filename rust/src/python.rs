//! Writes values as Python's str, repr and % do. minijinja writes some values differently and lacks some formats.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

const MAX_BYTES: usize = 1 << 20;
const MAX_WIDTH: usize = 1 << 10;
const MAX_DEPTH: usize = 64;
/// The largest number of parts of a value that a search visits. The limit is needed because a value may contain itself.
const MAX_PARTS: usize = 1 << 14;

pub fn as_float(value: &Value) -> Option<f64> {
    let float = value.kind() == ValueKind::Number && !value.is_integer();
    float.then(|| f64::try_from(value.clone()).ok()).flatten()
}

/// Returns a float as Python's repr does: shortest digits, exponent form from 1e16 and below 1e-4.
pub fn float_text(x: f64) -> String {
    if !x.is_finite() {
        return not_finite(x).to_string();
    }
    if x != 0.0 && !(1e-4..1e16).contains(&x.abs()) {
        return with_exponent(&format!("{x:e}"));
    }
    let text = x.to_string();
    if text.contains('.') {
        text
    } else {
        text + ".0"
    }
}

/// Returns str(value). minijinja's text differs only in floats.
pub fn text(value: &Value) -> Result<String, Error> {
    match as_float(value) {
        Some(x) => Ok(float_text(x)),
        None if has_float(value, &mut 0) => repr(value),
        None => Ok(value.to_string()),
    }
}

fn repr(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    write_repr(value, 0, &mut out)?;
    Ok(out)
}

fn has_float(value: &Value, seen: &mut usize) -> bool {
    *seen += 1;
    if *seen > MAX_PARTS {
        return false;
    }
    let values = || value.try_iter().into_iter().flatten();
    match value.kind() {
        ValueKind::Number => as_float(value).is_some(),
        ValueKind::Seq => values().any(|item| has_float(&item, seen)),
        ValueKind::Map => values().any(|key| value.get_item(&key).is_ok_and(|item| has_float(&item, seen))),
        _ => false,
    }
}

fn write_repr(value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
    if depth > MAX_DEPTH || out.len() > MAX_BYTES {
        return Err(refused("a value is too large to be written"));
    }
    if let Some(x) = as_float(value) {
        out.push_str(&float_text(x));
        return Ok(());
    }
    let (open, close) = match value.kind() {
        ValueKind::Seq if value.is_tuple() => ('(', ')'),
        ValueKind::Seq => ('[', ']'),
        ValueKind::Map => ('{', '}'),
        _ => {
            out.push_str(&format!("{value:?}"));
            return Ok(());
        }
    };
    out.push(open);
    let mut count = 0;
    for item in value.try_iter()? {
        out.push_str(if count > 0 { ", " } else { "" });
        write_repr(&item, depth + 1, out)?;
        if open == '{' {
            out.push_str(": ");
            write_repr(&value.get_item(&item)?, depth + 1, out)?;
        }
        count += 1;
    }
    out.push_str(if open == '(' && count == 1 { "," } else { "" });
    out.push(close);
    Ok(())
}

/// Implements `left % right`: a format and its arguments, or the remainder of a division, whose sign is the divisor's.
pub fn percent(left: &Value, right: &Value) -> Result<Value, Error> {
    if let Some(format) = left.as_str() {
        return Format { rest: format, arguments: Arguments::of(right)?, out: String::new() }.run().map(Value::from);
    }
    if let (Some(a), Some(b)) = (integer(left), integer(right)) {
        let rest = a.checked_rem(b).ok_or_else(|| refused("%: division by zero"))?;
        let rest = if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest };
        return Ok(i64::try_from(rest).map_or_else(|_| Value::from(rest), Value::from));
    }
    let (Some(a), Some(b)) = (number(left), number(right)) else {
        return Err(refused(format!("% takes a text or two numbers, found {} and {}", left.kind(), right.kind())));
    };
    if b == 0.0 {
        return Err(refused("%: division by zero"));
    }
    let rest = a % b;
    Ok(Value::from(if rest == 0.0 {
        0f64.copysign(b)
    } else if (rest < 0.0) != (b < 0.0) {
        rest + b
    } else {
        rest
    }))
}

/// The arguments of a format: the items of a tuple, or a single value.
struct Arguments {
    items: Vec<Value>,
    used: usize,
    named: Option<Value>,
    all_needed: bool,
}

impl Arguments {
    fn of(right: &Value) -> Result<Arguments, Error> {
        let items = if right.is_tuple() { right.try_iter()?.collect() } else { vec![right.clone()] };
        let named = (right.kind() == ValueKind::Map).then(|| right.clone());
        let all_needed = right.is_tuple() || !matches!(right.kind(), ValueKind::Map | ValueKind::Seq);
        Ok(Arguments { items, used: 0, named, all_needed })
    }

    fn next(&mut self) -> Result<Value, Error> {
        self.used += 1;
        self.items.get(self.used - 1).cloned().ok_or_else(|| refused("%: not enough arguments for the format"))
    }

    fn size(&mut self) -> Result<i64, Error> {
        let size = integer(&self.next()?).and_then(|n| i64::try_from(n).ok());
        size.filter(|n| n.unsigned_abs() <= MAX_WIDTH as u64).ok_or_else(|| refused("%: * wants an integer"))
    }
}

struct Format<'a> {
    rest: &'a str,
    arguments: Arguments,
    out: String,
}

#[derive(Default)]
struct Spec {
    left: bool,
    plus: bool,
    space: bool,
    other: bool,
    zero: bool,
    width: usize,
    precision: Option<usize>,
}

impl Format<'_> {
    fn run(mut self) -> Result<String, Error> {
        while let Some(at) = self.rest.find('%') {
            self.out.push_str(&self.rest[..at]);
            self.rest = &self.rest[at + 1..];
            self.field()?;
            if self.out.len() > MAX_BYTES {
                return Err(refused(format!("%: more than {MAX_BYTES} bytes")));
            }
        }
        if self.arguments.all_needed && self.arguments.used < self.arguments.items.len() {
            return Err(refused("%: not all arguments are used by the format"));
        }
        Ok(self.out + self.rest)
    }

    fn field(&mut self) -> Result<(), Error> {
        let mut named = None;
        if let Some(inside) = self.rest.strip_prefix('(') {
            let end = inside.find(')').ok_or_else(|| refused("%: the format ends within a name"))?;
            let map = self.arguments.named.clone().ok_or_else(|| refused("%: a format with names wants a mapping"))?;
            let value = map.get_item(&Value::from(&inside[..end]))?;
            if value.is_undefined() {
                return Err(refused("%: the mapping lacks a name of the format"));
            }
            named = Some(value);
            self.rest = &inside[end + 1..];
        }
        let mut spec = Spec::default();
        while let Some(flag) = self.rest.chars().next().filter(|c| "-+ #0".contains(*c)) {
            match flag {
                '-' => spec.left = true,
                '+' => spec.plus = true,
                ' ' => spec.space = true,
                '#' => spec.other = true,
                _ => spec.zero = true,
            }
            self.rest = &self.rest[1..];
        }
        let width = self.size()?.unwrap_or(0);
        spec.left |= width < 0;
        spec.width = width.unsigned_abs() as usize;
        if let Some(rest) = self.rest.strip_prefix('.') {
            self.rest = rest;
            spec.precision = Some(self.size()?.unwrap_or(0).max(0) as usize);
        }
        self.rest = self.rest.strip_prefix(['h', 'l', 'L']).unwrap_or(self.rest);
        let conversion = self.rest.chars().next().ok_or_else(|| refused("%: the format ends within a field"))?;
        self.rest = &self.rest[conversion.len_utf8()..];
        if conversion == '%' {
            self.out.push('%');
            return Ok(());
        }
        let value = match named {
            Some(value) => value,
            None => self.arguments.next()?,
        };
        self.out.push_str(&spec.text(conversion, &value)?);
        Ok(())
    }

    fn size(&mut self) -> Result<Option<i64>, Error> {
        if let Some(rest) = self.rest.strip_prefix('*') {
            self.rest = rest;
            return self.arguments.size().map(Some);
        }
        let digits = self.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len());
        let (size, rest) = self.rest.split_at(digits);
        self.rest = rest;
        if size.is_empty() {
            return Ok(None);
        }
        let size = size.parse().ok().filter(|n| *n <= MAX_WIDTH as i64);
        size.map(Some).ok_or_else(|| refused(format!("%: a width or precision above {MAX_WIDTH}")))
    }
}

impl Spec {
    fn text(&self, conversion: char, value: &Value) -> Result<String, Error> {
        match conversion {
            's' => Ok(self.padded(self.cut(text(value)?))),
            'r' | 'a' => {
                let text = repr(value)?;
                Ok(self.padded(self.cut(if conversion == 'a' { ascii(&text) } else { text })))
            }
            'c' => {
                let one = value.as_str().filter(|s| s.chars().count() == 1).map(str::to_string);
                let code = || integer(value).and_then(|n| u32::try_from(n).ok()).and_then(char::from_u32);
                let c = one.or_else(|| code().map(String::from)).ok_or_else(|| refused("%c wants one character"))?;
                Ok(self.padded(c))
            }
            'd' | 'i' | 'u' | 'o' | 'x' | 'X' => {
                let whole = as_float(value).filter(|x| x.abs() < 1e38 && "diu".contains(conversion)).map(|x| x as i128);
                let n = integer(value).or(whole).ok_or_else(|| wrong(conversion, "an integer", value))?;
                Ok(self.integer(conversion, n))
            }
            'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
                let x = number(value).ok_or_else(|| wrong(conversion, "a number", value))?;
                let text = self.float(conversion.to_ascii_lowercase(), x.abs());
                let text = if conversion.is_ascii_uppercase() { text.to_uppercase() } else { text };
                Ok(self.signed(x.is_sign_negative() && !x.is_nan(), "", &text))
            }
            other => Err(refused(format!("%: '{other}' is no conversion"))),
        }
    }

    fn integer(&self, conversion: char, n: i128) -> String {
        let size = n.unsigned_abs();
        let (prefix, digits) = match conversion {
            'o' => ("0o", format!("{size:o}")),
            'x' => ("0x", format!("{size:x}")),
            'X' => ("0X", format!("{size:X}")),
            _ => ("", size.to_string()),
        };
        let digits = format!("{digits:0>width$}", width = self.precision.unwrap_or(0));
        self.signed(n < 0, if self.other { prefix } else { "" }, &digits)
    }

    /// Formats a number that is not negative.
    fn float(&self, conversion: char, x: f64) -> String {
        if !x.is_finite() {
            return not_finite(x).to_string();
        }
        let precision = self.precision.unwrap_or(6);
        match conversion {
            'f' => format!("{x:.precision$}") + if self.other && precision == 0 { "." } else { "" },
            'e' => with_exponent(&format!("{x:.precision$e}")),
            _ => {
                let digits = precision.max(1);
                let scientific = format!("{x:.*e}", digits - 1);
                let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
                let exponent: i64 = exponent.parse().unwrap_or(0);
                if exponent < -4 || exponent >= digits as i64 {
                    return with_exponent(&format!("{}e{exponent}", self.without_zeros(mantissa)));
                }
                self.without_zeros(&format!("{x:.*}", (digits as i64 - 1 - exponent) as usize)).to_string()
            }
        }
    }

    fn without_zeros<'a>(&self, text: &'a str) -> &'a str {
        if self.other || !text.contains('.') {
            text
        } else {
            text.trim_end_matches('0').trim_end_matches('.')
        }
    }

    fn signed(&self, negative: bool, prefix: &str, digits: &str) -> String {
        let sign = if negative {
            "-"
        } else if self.plus {
            "+"
        } else if self.space {
            " "
        } else {
            ""
        };
        let taken = sign.len() + prefix.len();
        if self.zero && !self.left {
            return format!("{sign}{prefix}{digits:0>width$}", width = self.width.saturating_sub(taken));
        }
        self.padded(format!("{sign}{prefix}{digits}"))
    }

    fn cut(&self, text: String) -> String {
        self.precision.map_or(text.clone(), |most| text.chars().take(most).collect())
    }

    fn padded(&self, text: String) -> String {
        if self.left {
            format!("{text:<width$}", width = self.width)
        } else {
            format!("{text:>width$}", width = self.width)
        }
    }
}

fn refused(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

fn wrong(conversion: char, wanted: &str, found: &Value) -> Error {
    refused(format!("%{conversion} wants {wanted}, found {}", found.kind()))
}

/// Returns a number without a fraction as an integer, and true as 1; else None.
fn integer(value: &Value) -> Option<i128> {
    match value.kind() {
        ValueKind::Bool => Some(i128::from(value.is_true())),
        ValueKind::Number if value.is_integer() => i128::try_from(value.clone()).ok(),
        _ => None,
    }
}

fn number(value: &Value) -> Option<f64> {
    as_float(value).or_else(|| integer(value).map(|n| n as f64))
}

fn not_finite(x: f64) -> &'static str {
    if x.is_nan() {
        "nan"
    } else if x > 0.0 {
        "inf"
    } else {
        "-inf"
    }
}

/// Rewrites Rust's exponent as C prints it: with a sign and at least two digits.
fn with_exponent(text: &str) -> String {
    let (digits, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let (sign, size) = exponent.strip_prefix('-').map_or(('+', exponent), |rest| ('-', rest));
    format!("{digits}e{sign}{size:0>2}")
}

fn ascii(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c as u32 {
            0..=0x7f => out.push(c),
            code @ 0x80..=0xff => out.push_str(&format!("\\x{code:02x}")),
            code @ 0x100..=0xffff => out.push_str(&format!("\\u{code:04x}")),
            code => out.push_str(&format!("\\U{code:08x}")),
        }
    }
    out
}
