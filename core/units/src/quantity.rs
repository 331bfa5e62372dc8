use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use crate::{Error, parse};

pub(crate) const NANOS_PER_UNIT: i128 = 1_000_000_000;
const NANOS_PER_MILLI: i128 = 1_000_000;
const DECIMAL_SUFFIXES: [(i32, &str); 10] =
    [(-9, "n"), (-6, "u"), (-3, "m"), (0, ""), (3, "k"), (6, "M"), (9, "G"), (12, "T"), (15, "P"), (18, "E")];
const BINARY_SUFFIXES: [(i32, &str); 6] =
    [(10, "Ki"), (20, "Mi"), (30, "Gi"), (40, "Ti"), (50, "Pi"), (60, "Ei")];

/// The family of suffixes that a quantity was written in, and is printed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Format {
    /// `n u m k M G T P E`, powers of ten; also a bare number.
    #[default]
    DecimalSi,
    /// `Ki Mi Gi Ti Pi Ei`, powers of 1024.
    BinarySi,
    /// `1e3`, `1E3`.
    DecimalExponent,
}

/// An exact Kubernetes quantity.
///
/// The value is a whole number of nano-units within ±(2⁶³ − 1) units. A text finer than a nano-unit is rounded away from zero, so that
/// asking for something never becomes asking for nothing. Grammar, rounding and canonical form are those of
/// `k8s.io/apimachinery/pkg/api/resource`; unlike it, a number that is too large is an error instead of a silent cap.
///
/// ```
/// use gantry_units::Quantity;
/// let quantity: Quantity = "1.5Gi".parse()?;
/// assert_eq!(quantity.to_string(), "1536Mi");
/// assert_eq!(quantity.value(), 1_610_612_736);
/// # Ok::<(), gantry_units::Error>(())
/// ```
#[derive(Clone, Copy, Default)]
pub struct Quantity {
    nanos: i128,
    format: Format,
}

impl Quantity {
    /// Nothing, written `0`.
    pub const ZERO: Self = Self { nanos: 0, format: Format::DecimalSi };

    /// The pattern that the API server cites when a quantity has no valid form.
    pub const PATTERN: &str = "^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$";

    const MAX_NANOS: i128 = i64::MAX as i128 * NANOS_PER_UNIT;

    /// So many whole units: devices, cores, bytes.
    pub const fn from_units(units: i64, format: Format) -> Self {
        // i64::MIN is one beyond what a quantity holds; Kubernetes caps it the same way.
        let units = if units == i64::MIN { -i64::MAX } else { units };
        Self { nanos: units as i128 * NANOS_PER_UNIT, format }
    }

    /// So many thousandths of a unit: milli-cores.
    pub const fn from_milli(milli: i64) -> Self {
        Self { nanos: milli as i128 * NANOS_PER_MILLI, format: Format::DecimalSi }
    }

    /// So many bytes, printed with `Ki`, `Mi`, `Gi` …
    pub const fn from_bytes(bytes: i64) -> Self {
        Self::from_units(bytes, Format::BinarySi)
    }

    pub(crate) fn from_nanos(nanos: i128, format: Format) -> Option<Self> {
        (nanos.abs() <= Self::MAX_NANOS).then_some(Self { nanos, format })
    }

    /// The family of suffixes that it is printed in.
    pub const fn format(&self) -> Format {
        self.format
    }

    /// Units, a fraction rounded away from zero.
    pub fn value(&self) -> i64 {
        i64::try_from(divide_away_from_zero(self.nanos, NANOS_PER_UNIT))
            .expect("invariant: a quantity is within the range of i64 units")
    }

    /// Thousandths of a unit, a fraction rounded away from zero; capped at the range of `i64`.
    pub fn milli_value(&self) -> i64 {
        let milli = divide_away_from_zero(self.nanos, NANOS_PER_MILLI);
        i64::try_from(milli).unwrap_or(if milli < 0 { i64::MIN } else { i64::MAX })
    }

    /// Whether it is a whole number of units.
    pub const fn is_integer(&self) -> bool {
        self.nanos % NANOS_PER_UNIT == 0
    }

    /// Whether it is zero.
    pub const fn is_zero(&self) -> bool {
        self.nanos == 0
    }

    /// Whether it is below zero.
    pub const fn is_negative(&self) -> bool {
        self.nanos < 0
    }

    /// The sum, or `None` beyond the range. It is printed as `self` is, or as `other` when `self` is zero.
    pub fn checked_add(self, other: Self) -> Option<Self> {
        Self::from_nanos(self.nanos + other.nanos, self.format_with(other))
    }

    /// The difference, or `None` beyond the range. It is printed as `self` is, or as `other` when `self` is zero.
    pub fn checked_sub(self, other: Self) -> Option<Self> {
        Self::from_nanos(self.nanos - other.nanos, self.format_with(other))
    }

    const fn format_with(self, other: Self) -> Format {
        if self.is_zero() { other.format } else { self.format }
    }
}

fn divide_away_from_zero(nanos: i128, divisor: i128) -> i128 {
    nanos / divisor + if nanos % divisor == 0 { 0 } else { nanos.signum() }
}

impl FromStr for Quantity {
    type Err = Error;

    fn from_str(input: &str) -> Result<Self, Error> {
        parse::quantity(input)
    }
}

impl fmt::Display for Quantity {
    /// The canonical form: no fraction, the largest suffix that needs none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.pad("0");
        }
        let is_binary = self.format == Format::BinarySi
            && self.is_integer()
            && (self.nanos / NANOS_PER_UNIT).unsigned_abs() >= 1024;
        let text = if is_binary { self.binary() } else { self.decimal() };
        f.pad(&text)
    }
}

impl Quantity {
    fn binary(&self) -> String {
        let (mut mantissa, mut suffix) = (self.nanos / NANOS_PER_UNIT, "");
        for (_, next) in BINARY_SUFFIXES {
            if mantissa % 1024 != 0 {
                break;
            }
            (mantissa, suffix) = (mantissa / 1024, next);
        }
        format!("{mantissa}{suffix}")
    }

    fn decimal(&self) -> String {
        let (mut mantissa, mut exponent) = (self.nanos, -9);
        while mantissa % 1000 == 0 {
            mantissa /= 1000;
            exponent += 3;
        }
        match self.format {
            Format::DecimalExponent if exponent != 0 => format!("{mantissa}e{exponent}"),
            Format::DecimalExponent => mantissa.to_string(),
            Format::DecimalSi | Format::BinarySi => {
                let suffix = DECIMAL_SUFFIXES.iter().find(|(power, _)| *power == exponent);
                format!("{mantissa}{}", suffix.map_or("", |(_, suffix)| suffix))
            }
        }
    }
}

impl fmt::Debug for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Quantity({self})")
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl Hash for Quantity {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.nanos.hash(state);
    }
}

/// The power and the family that a suffix stands for: `(base, exponent, format)`.
pub(crate) fn suffix(text: &str) -> Option<(Base, i64, Format)> {
    let find = |table: &[(i32, &str)]| {
        table.iter().find(|(_, suffix)| *suffix == text).map(|(power, _)| i64::from(*power))
    };
    find(&DECIMAL_SUFFIXES)
        .map(|power| (Base::Ten, power, Format::DecimalSi))
        .or_else(|| find(&BINARY_SUFFIXES).map(|power| (Base::Two, power, Format::BinarySi)))
}

/// What a suffix is a power of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Base {
    Two,
    Ten,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn quantity(text: &str) -> Quantity {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn the_canonical_form_is_the_one_of_the_api_server() {
        let cases = [
            ("0", "0"),
            ("0Gi", "0"),
            ("123", "123"),
            ("1000", "1k"),
            ("1.5", "1500m"),
            (".5", "500m"),
            ("5.", "5"),
            ("+3", "3"),
            ("-5", "-5"),
            ("-1.5", "-1500m"),
            ("100m", "100m"),
            ("1000m", "1"),
            ("1.5Gi", "1536Mi"),
            ("1024Mi", "1Gi"),
            ("1000Ki", "1000Ki"),
            ("0.5Ki", "512"),
            ("1.1Ki", "1126400m"),
            ("1025Ki", "1025Ki"),
            ("4Gi", "4Gi"),
            ("-4Gi", "-4Gi"),
            ("7Ei", "7Ei"),
            ("8E", "8E"),
            ("1e3", "1e3"),
            ("1E6", "1e6"),
            ("10e3", "10e3"),
            ("1e-3", "1e-3"),
            ("1e2", "100"),
            ("100u", "100u"),
            ("1n", "1n"),
            ("0.1n", "1n"),
            ("-0.1n", "-1n"),
            ("1e-400", "1e-9"),
            ("0.0000000001", "1n"),
            ("0e99999", "0"),
            ("9223372036854775807", "9223372036854775807"),
            ("000000000000000000000000000000000000000000001k", "1k"),
            ("0.000000000000000000000001Ei", "1153n"),
        ];
        for (input, canonical) in cases {
            assert_eq!(quantity(input).to_string(), canonical, "{input}");
        }
    }

    #[test]
    fn equal_values_are_equal_whatever_their_suffix() {
        assert_eq!(quantity("1Gi"), quantity("1024Mi"));
        assert_eq!(quantity("1000m"), quantity("1"));
        assert_eq!(quantity("1e3"), quantity("1k"));
        assert!(quantity("1Gi") > quantity("1G"));
        assert!(quantity("-1") < quantity("0"));
    }

    #[test]
    fn values_round_away_from_zero() {
        for (input, value, milli) in
            [("1.5", 2, 1500), ("-1.5", -2, -1500), ("100m", 1, 100), ("1n", 1, 1), ("2Ki", 2048, 2_048_000)]
        {
            assert_eq!((quantity(input).value(), quantity(input).milli_value()), (value, milli), "{input}");
        }
        assert_eq!(quantity("8E").milli_value(), i64::MAX);
        assert_eq!(quantity("-8E").milli_value(), i64::MIN);
    }

    #[test]
    fn arithmetic_reports_what_leaves_the_range() {
        let max = Quantity::from_units(i64::MAX, Format::DecimalSi);
        assert_eq!(max.checked_add(quantity("1n")), None);
        assert_eq!(quantity("-9223372036854775807").checked_sub(quantity("1")), None);
        assert_eq!(Quantity::ZERO.checked_add(quantity("2Gi")).unwrap().to_string(), "2Gi");
        assert_eq!(quantity("1k").checked_add(quantity("1Ki")).unwrap().to_string(), "2024");
    }

    fn any_quantity() -> impl Strategy<Value = Quantity> {
        let format =
            prop_oneof![Just(Format::DecimalSi), Just(Format::BinarySi), Just(Format::DecimalExponent)];
        (-(Quantity::MAX_NANOS / 2)..=Quantity::MAX_NANOS / 2, 0u32..28, format).prop_map(
            |(nanos, shrink, format)| Quantity::from_nanos(nanos / 10i128.pow(shrink), format).unwrap(),
        )
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_back_as_the_same_value(quantity in any_quantity()) {
            let text = quantity.to_string();
            let read: Quantity = text.parse().unwrap();
            prop_assert_eq!(read, quantity);
            prop_assert_eq!(read.to_string(), text);
        }

        #[test]
        fn order_is_the_order_of_the_values(a in any_quantity(), b in any_quantity()) {
            prop_assert_eq!(a.cmp(&b), a.checked_sub(b).unwrap().cmp(&Quantity::ZERO));
        }

        #[test]
        fn addition_commutes_and_subtraction_undoes_it(a in any_quantity(), b in any_quantity()) {
            let sum = a.checked_add(b).unwrap();
            prop_assert_eq!(sum, b.checked_add(a).unwrap());
            prop_assert_eq!(sum.checked_sub(b), Some(a));
        }

        #[test]
        fn the_rounded_value_is_the_nearest_whole_number_away_from_zero(quantity in any_quantity()) {
            let value = Quantity::from_units(quantity.value(), Format::DecimalSi);
            let (low, high) = if quantity.is_negative() { (value, quantity) } else { (quantity, value) };
            prop_assert!(low <= high);
            prop_assert!(high.checked_sub(low).unwrap() < Quantity::from_units(1, Format::DecimalSi));
            prop_assert_eq!(quantity.is_integer(), value == quantity);
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC*") {
            let _: Result<Quantity, _> = text.parse();
        }

        #[test]
        fn near_quantities_never_panic_and_survive_printing(text in "[+-]?[0-9]{0,40}\\.?[0-9]{0,30}(e[+-]?[0-9]{1,20}|[numkMGTPE]|[KMGTPE]i)?") {
            if let Ok(quantity) = text.parse::<Quantity>() {
                prop_assert_eq!(quantity.to_string().parse::<Quantity>().unwrap(), quantity);
            }
        }
    }
}
