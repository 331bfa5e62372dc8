//! The grammar of quantities: `sign? digits? ("." digits?)? (suffix | [eE] sign? digits)?` with at least one digit before the suffix.

use crate::quantity::{Base, suffix};
use crate::{Error, Format, Quantity};

/// A number of nano-units has at most so many digits: 19 for the units, 9 for the fraction.
const MAX_NANO_DIGITS: i64 = 28;

pub(crate) fn quantity(input: &str) -> Result<Quantity, Error> {
    let syntax = |hint: String| Error::Syntax { input: input.to_owned(), hint };
    let (is_negative, unsigned) = match input.as_bytes().first() {
        Some(b'-') => (true, &input[1..]),
        Some(b'+') => (false, &input[1..]),
        _ => (false, input),
    };
    let number_len = unsigned.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count();
    let (number, suffix) = unsigned.split_at(number_len);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(syntax(number_hint(input)));
    }
    let (base, power, format) = interpret(suffix).ok_or_else(|| syntax(suffix_hint(suffix)))?;

    let digits =
        whole.bytes().chain(fraction.bytes()).skip_while(|byte| *byte == b'0').map(|byte| byte - b'0');
    let mut digits: Vec<u8> = digits.collect();
    let mut exponent = 9 - i64::try_from(fraction.len()).unwrap_or(i64::MAX);
    match base {
        Base::Ten => exponent = exponent.saturating_add(power),
        Base::Two => (0..power / 10).for_each(|_| times_1024(&mut digits)),
    }
    nanos(&digits, exponent)
        .and_then(|nanos| Quantity::from_nanos(if is_negative { -nanos } else { nanos }, format))
        .ok_or_else(|| Error::Range { input: input.to_owned() })
}

/// `digits × 10^exponent` as a whole number, a remainder rounded up; `None` when it has too many digits.
fn nanos(digits: &[u8], exponent: i64) -> Option<i128> {
    if digits.is_empty() {
        return Some(0);
    }
    let length = i64::try_from(digits.len()).ok()?;
    let kept = length.saturating_add(exponent.min(0)).max(0);
    if kept.saturating_add(exponent.max(0)) > MAX_NANO_DIGITS {
        return None;
    }
    let (kept, dropped) = digits.split_at(usize::try_from(kept).ok()?);
    let mantissa = kept.iter().fold(0i128, |sum, digit| sum * 10 + i128::from(*digit));
    let scaled = mantissa * 10i128.pow(u32::try_from(exponent.max(0)).ok()?);
    Some(scaled + i128::from(dropped.iter().any(|digit| *digit != 0)))
}

/// Multiplies a number given as decimal digits, most significant first.
fn times_1024(digits: &mut Vec<u8>) {
    let mut carry = 0u32;
    for digit in digits.iter_mut().rev() {
        let product = u32::from(*digit) * 1024 + carry;
        *digit = u8::try_from(product % 10).expect("invariant: a remainder of ten is a digit");
        carry = product / 10;
    }
    let mut front = Vec::new();
    while carry > 0 {
        front.push(u8::try_from(carry % 10).expect("invariant: a remainder of ten is a digit"));
        carry /= 10;
    }
    front.reverse();
    digits.splice(0..0, front);
}

fn interpret(text: &str) -> Option<(Base, i64, Format)> {
    if let Some(known) = suffix(text) {
        return Some(known);
    }
    let digits = text.strip_prefix(['e', 'E'])?;
    let (is_negative, digits) = match digits.as_bytes().first()? {
        b'-' => (true, &digits[1..]),
        b'+' => (false, &digits[1..]),
        _ => (false, digits),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // A power beyond i64 means the same as its limit: out of range, or rounded to a nano-unit.
    let power = digits.parse().unwrap_or(i64::MAX / 2);
    Some((Base::Ten, if is_negative { -power } else { power }, Format::DecimalExponent))
}

fn number_hint(input: &str) -> String {
    if input.trim().is_empty() {
        "it is empty; write a number such as 1, 500m or 4Gi".to_owned()
    } else if input.trim() != input {
        format!("remove the spaces around it: {}", input.trim())
    } else {
        "begin with a number that has one decimal point at most, such as 1, 500m or 4Gi".to_owned()
    }
}

fn suffix_hint(suffix: &str) -> String {
    let name = suffix.trim();
    let known = ["n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    // `GB`, `gib`, `GiB` and `gi` are what people write for `G` and `Gi`.
    let bare = name.strip_suffix(['b', 'B']).unwrap_or(name);
    let near = known
        .iter()
        .find(|suffix| **suffix == bare)
        .or_else(|| known.iter().rev().find(|suffix| suffix.eq_ignore_ascii_case(bare) && !bare.is_empty()));
    match near {
        Some(suffix) => format!("the suffix is {suffix:?}, without a space or a \"B\""),
        None => format!("{name:?} is no suffix; use one of {}", known.join(" ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_shows_the_input_and_what_to_write() {
        let cases = [
            ("", "it is empty"),
            (" 4Gi", "remove the spaces around it: 4Gi"),
            ("4 Gi", "the suffix is \"Gi\""),
            ("4GB", "the suffix is \"G\""),
            ("4GiB", "the suffix is \"Gi\""),
            ("4gi", "the suffix is \"Gi\""),
            ("4K", "the suffix is \"k\""),
            ("4potatoes", "\"potatoes\" is no suffix"),
            ("1e", "the suffix is \"E\""),
            ("1e+", "is no suffix"),
            ("1e3Gi", "is no suffix"),
            ("1.2.3", "one decimal point at most"),
            (".", "one decimal point at most"),
            ("--1", "begin with a number"),
            ("Gi", "begin with a number"),
            ("１", "begin with a number"),
        ];
        for (input, hint) in cases {
            let error = quantity(input).unwrap_err();
            let text = error.to_string();
            assert!(matches!(error, Error::Syntax { .. }), "{input:?}: {text}");
            assert!(text.contains(hint), "{input:?}: {text}");
            assert!(text.contains(&format!("{input:?}")) && text.contains(Quantity::PATTERN), "{text}");
        }
    }

    #[test]
    fn a_number_too_large_is_named_instead_of_capped() {
        for input in [
            "9223372036854775808",
            "16Ei",
            "8Ei",
            "1e19",
            "1e99999999999999999999",
            "-1e30",
            "99999999999999999999999999999",
        ] {
            let error = quantity(input).unwrap_err();
            assert_eq!(error, Error::Range { input: input.to_owned() });
            assert!(error.to_string().contains(input));
        }
    }
}
