//! What an image requires of driver and GPU: `NVIDIA_REQUIRE_*`.
//!
//! ```text
//!   NVIDIA_REQUIRE_CUDA = cuda>=12.4 brand=tesla,driver>=535,driver<536
//!                         └───┬────┘ └──────────────┬────────────────┘
//!                         one of these (space): all of these (comma)
//! ```
//!
//! The language is that of NVIDIA's container toolkit. Versions are compared number by number, what one lacks being 0.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use gantry_model::Gpu;

use crate::error::short;
use crate::version::{compare, numbers};
use crate::{DriverVersion, Error};

/// What the variables of requirements begin with.
const PREFIX: &str = "NVIDIA_REQUIRE_";
/// The requirements of Tegra images, which speak of files rather than of versions.
const JETPACK: &str = "NVIDIA_REQUIRE_JETPACK";
/// The variable that switches the check off.
const DISABLE: &str = "NVIDIA_DISABLE_REQUIRE";
/// The longest value that is read, in bytes. Those of NVIDIA's images have about a thousand.
const MAX_VALUE: usize = 64 * 1024;

/// What a constraint speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    Cuda,
    Driver,
    Arch,
    Brand,
}

const SUBJECTS: [(&str, Subject); 4] = [
    ("cuda", Subject::Cuda),
    ("driver", Subject::Driver),
    ("arch", Subject::Arch),
    ("brand", Subject::Brand),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// The longer ones first.
const OPERATORS: [(&str, Operator); 7] = [
    ("<=", Operator::LessOrEqual),
    (">=", Operator::GreaterOrEqual),
    ("==", Operator::Equal),
    ("!=", Operator::Unequal),
    ("=", Operator::Equal),
    ("<", Operator::Less),
    (">", Operator::Greater),
];

impl Operator {
    fn holds(self, order: Ordering) -> bool {
        match self {
            Self::Equal => order.is_eq(),
            Self::Unequal => order.is_ne(),
            Self::Less => order.is_lt(),
            Self::LessOrEqual => order.is_le(),
            Self::Greater => order.is_gt(),
            Self::GreaterOrEqual => order.is_ge(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Value {
    Version(Vec<u32>),
    Word(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Term {
    subject: Subject,
    operator: Operator,
    value: Value,
}

/// One variable's requirement: one of its alternatives, each of which is all of its terms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    variable: String,
    text: String,
    alternatives: Vec<Vec<Term>>,
}

/// What requirements are compared with.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// The driver.
    pub driver: &'a DriverVersion,
    /// The newest CUDA version that it runs. Where it is not known, what is required of it counts as met.
    pub cuda: Option<(u32, u32)>,
    /// The GPU, if the container has one; otherwise what is required of a GPU counts as met.
    pub gpu: Option<&'a Gpu>,
}

impl Requirement {
    /// Reads the value of a variable.
    ///
    /// # Errors
    /// [`Error::Constraint`], which names the term.
    pub fn parse(variable: &str, value: &str) -> Result<Self, Error> {
        let refuse =
            |text: &str, rule| Error::Constraint { variable: short(variable), constraint: short(text), rule };
        if value.len() > MAX_VALUE {
            return Err(refuse(value, "it has more than 64 KiB"));
        }
        let term = |text: &str| {
            let at = text
                .find(['<', '>', '=', '!'])
                .ok_or_else(|| refuse(text, "write a subject, an operator and a value, as in cuda>=12.4"))?;
            let (subject, rest) = text.split_at(at);
            let found = SUBJECTS.iter().find(|(name, _)| *name == subject);
            let (_, subject) =
                found.ok_or_else(|| refuse(text, "its subject must be cuda, driver, arch or brand"))?;
            let found =
                OPERATORS.iter().find_map(|(sign, operator)| Some((operator, rest.strip_prefix(sign)?)));
            let (operator, value) =
                found.ok_or_else(|| refuse(text, "its operator must be =, ==, !=, <, <=, > or >="))?;
            let value = if *subject == Subject::Brand {
                if !matches!(operator, Operator::Equal | Operator::Unequal) {
                    return Err(refuse(text, "brands have no order: use = or !="));
                }
                let good = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_alphanumeric());
                good.then(|| Value::Word(value.to_ascii_lowercase()))
                    .ok_or_else(|| refuse(text, "its brand must be letters and digits, as in tesla"))?
            } else {
                let numbers = numbers(value, 6).filter(|numbers| numbers.len() <= 4);
                Value::Version(numbers.ok_or_else(|| {
                    refuse(text, "its value must be one to four numbers joined by dots, as in 12.4")
                })?)
            };
            Ok(Term { subject: *subject, operator: *operator, value })
        };
        let alternatives = value
            .split_whitespace()
            .map(|all| all.split(',').filter(|text| !text.is_empty()).map(term).collect())
            .collect::<Result<Vec<Vec<Term>>, Error>>()?;
        let alternatives = alternatives.into_iter().filter(|terms| !terms.is_empty()).collect();
        Ok(Self { variable: variable.to_owned(), text: value.to_owned(), alternatives })
    }

    /// Whether it is met. One without alternatives asks for nothing.
    pub fn is_met(&self, facts: &Facts<'_>) -> bool {
        self.alternatives.is_empty()
            || self.alternatives.iter().any(|terms| terms.iter().all(|term| term.holds(facts)))
    }

    /// Refuses what does not meet it.
    ///
    /// # Errors
    /// [`Error::Unsatisfied`], which names the requirement and what there is.
    pub fn check(&self, facts: &Facts<'_>) -> Result<(), Error> {
        if self.is_met(facts) {
            return Ok(());
        }
        Err(Error::Unsatisfied {
            variable: short(&self.variable),
            constraint: short(&self.text),
            has: describe(facts),
        })
    }
}

impl Term {
    fn holds(&self, facts: &Facts<'_>) -> bool {
        let pair = |(major, minor): (u32, u32)| vec![major, minor];
        let version = match self.subject {
            Subject::Driver => Some(facts.driver.numbers().to_vec()),
            Subject::Cuda => facts.cuda.map(pair),
            Subject::Arch => facts.gpu.map(|gpu| pair(gpu.compute_capability)),
            Subject::Brand => {
                return match (&self.value, facts.gpu) {
                    (Value::Word(word), Some(gpu)) => {
                        self.operator.holds(brand(&gpu.product).cmp(word.as_str()))
                    }
                    _ => true,
                };
            }
        };
        match (&self.value, version) {
            (Value::Version(value), Some(version)) => self.operator.holds(compare(&version, value)),
            _ => true,
        }
    }
}

/// What driver and GPU are, in the words of constraints.
fn describe(facts: &Facts<'_>) -> String {
    let cuda = facts.cuda.map_or_else(String::new, |(major, minor)| format!(" cuda={major}.{minor}"));
    let gpu = facts.gpu.map_or_else(String::new, |gpu| {
        let (major, minor) = gpu.compute_capability;
        format!(" and GPU {} ({}) brand={} arch={major}.{minor}", gpu.index, gpu.product, brand(&gpu.product))
    });
    format!("driver={}{cuda}{gpu}", facts.driver)
}

/// NVML's brand of a product, in the words of constraints; the product's name follows from it.
fn brand(product: &str) -> &'static str {
    const BRANDS: [(&str, &str); 10] = [
        ("GeForce RTX", "geforcertx"),
        ("GeForce", "geforce"),
        ("Quadro RTX", "quadrortx"),
        ("Quadro", "quadro"),
        ("TITAN RTX", "titanrtx"),
        ("TITAN", "titan"),
        ("Tesla", "tesla"),
        ("GRID", "grid"),
        ("NVS", "nvs"),
        ("RTX", "nvidiartx"),
    ];
    let name = product.strip_prefix("NVIDIA ").unwrap_or(product);
    BRANDS.iter().find(|(begin, _)| name.starts_with(begin)).map_or("nvidia", |(_, brand)| *brand)
}

/// The requirements in a container's environment, by variable; none where they are switched off.
///
/// An image of the time before requirements has `CUDA_VERSION` alone, and requires that.
///
/// # Errors
/// [`Error::Constraint`] for a value that cannot be read.
pub fn requirements(env: &BTreeMap<&str, &str>) -> Result<Vec<Requirement>, Error> {
    let disabled =
        env.get(DISABLE).is_some_and(|value| matches!(*value, "1" | "t" | "T" | "true" | "TRUE" | "True"));
    if disabled {
        return Ok(Vec::new());
    }
    let legacy = legacy_cuda(env).map(|version| ("CUDA_VERSION", format!("cuda>={version}")));
    let named = env.iter().filter(|(name, _)| name.starts_with(PREFIX) && !name.starts_with(JETPACK));
    let named = named.map(|(name, value)| (*name, (*value).to_owned()));
    legacy.into_iter().chain(named).map(|(name, value)| Requirement::parse(name, &value)).collect()
}

/// Major and minor of the CUDA version of an image that is older than requirements.
pub(crate) fn legacy_cuda(env: &BTreeMap<&str, &str>) -> Option<String> {
    if env.contains_key("NVIDIA_REQUIRE_CUDA") {
        return None;
    }
    let mut parts = env.get("CUDA_VERSION")?.split('.');
    let version = format!("{}.{}", parts.next()?, parts.next().unwrap_or("0"));
    numbers(&version, 6).map(|_| version)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gantry_model::Health;

    use super::*;

    fn gpu(product: &str, compute_capability: (u32, u32)) -> Gpu {
        Gpu {
            id: "GPU-a".parse().unwrap(),
            index: 3,
            minor: 3,
            product: Arc::from(product),
            memory_mib: 0,
            pci_bus_id: String::new(),
            numa_node: None,
            compute_capability,
            mig_capable: false,
            partitions: None,
            health: Health::Healthy,
        }
    }

    #[test]
    fn spaces_are_or_and_commas_are_and() {
        let (driver, gpu) = ("470.57.02".parse().unwrap(), gpu("Tesla T4", (7, 5)));
        let facts = Facts { driver: &driver, cuda: Some((11, 4)), gpu: Some(&gpu) };
        for (value, expected) in [
            ("", true),
            (" , ,, ", true),
            ("cuda>=11.4", true),
            ("cuda>=11", true),
            ("cuda>11.4", false),
            ("cuda=11.4", true),
            ("cuda==11.4.0", true),
            ("cuda!=11.4", false),
            ("cuda<12", true),
            ("cuda>=9.0", true),
            ("cuda>=11.10", false),
            ("driver>=470", true),
            ("driver>=470,driver<471", true),
            ("driver<470.57.02", false),
            ("driver<=470.57.2", true),
            ("arch>=7.5", true),
            ("arch>=8", false),
            ("brand=tesla", true),
            ("brand=TESLA", true),
            ("brand!=tesla", false),
            ("cuda>=12.4 brand=tesla,driver>=470,driver<471", true),
            ("cuda>=12.4 brand=geforce,driver>=470,driver<471", false),
            ("cuda>=12.4 brand=tesla,driver>=450,driver<451 brand=tesla,driver>=470,driver<471", true),
        ] {
            let requirement = Requirement::parse("NVIDIA_REQUIRE_CUDA", value).unwrap();
            assert_eq!(requirement.is_met(&facts), expected, "{value}");
        }
        let without = Facts { cuda: None, gpu: None, ..facts };
        for value in ["cuda>=99", "arch>=99", "brand=x"] {
            assert!(Requirement::parse("NVIDIA_REQUIRE_CUDA", value).unwrap().is_met(&without), "{value}");
        }
    }

    #[test]
    fn a_refusal_names_the_requirement_and_what_there_is() {
        let (driver, gpu) = ("550.54.15".parse().unwrap(), gpu("NVIDIA A100-SXM4-80GB", (8, 0)));
        let facts = Facts { driver: &driver, cuda: Some((12, 4)), gpu: Some(&gpu) };
        let requirement =
            Requirement::parse("NVIDIA_REQUIRE_CUDA", "cuda>=12.8 brand=tesla,driver>=535").unwrap();
        assert_eq!(
            requirement.check(&facts).unwrap_err().to_string(),
            "unsatisfied requirement NVIDIA_REQUIRE_CUDA=\"cuda>=12.8 brand=tesla,driver>=535\": this node has \
             driver=550.54.15 cuda=12.4 and GPU 3 (NVIDIA A100-SXM4-80GB) brand=nvidia arch=8.0; use an image for this \
             driver, update the driver, or set NVIDIA_DISABLE_REQUIRE=true to start nevertheless"
        );
        assert!(requirement.check(&Facts { cuda: Some((13, 0)), ..facts }).is_ok());
    }

    #[test]
    fn what_is_no_constraint_is_refused_with_its_rule() {
        for (value, rule) in [
            ("cuda", "write a subject, an operator and a value, as in cuda>=12.4"),
            ("12.4", "write a subject, an operator and a value, as in cuda>=12.4"),
            ("gpu>=1", "its subject must be cuda, driver, arch or brand"),
            (">=1", "its subject must be cuda, driver, arch or brand"),
            ("CUDA>=1", "its subject must be cuda, driver, arch or brand"),
            ("cuda!1", "its operator must be =, ==, !=, <, <=, > or >="),
            ("cuda=>1", "its value must be one to four numbers joined by dots, as in 12.4"),
            ("cuda>=", "its value must be one to four numbers joined by dots, as in 12.4"),
            ("cuda>=12.x", "its value must be one to four numbers joined by dots, as in 12.4"),
            ("cuda>=1.2.3.4.5", "its value must be one to four numbers joined by dots, as in 12.4"),
            ("driver>=-5", "its value must be one to four numbers joined by dots, as in 12.4"),
            ("brand>tesla", "brands have no order: use = or !="),
            ("brand=", "its brand must be letters and digits, as in tesla"),
            ("brand=a_b", "its brand must be letters and digits, as in tesla"),
        ] {
            assert_eq!(
                Requirement::parse("NVIDIA_REQUIRE_X", &format!("cuda>=1,{value} driver>=1"))
                    .unwrap_err()
                    .to_string(),
                format!("NVIDIA_REQUIRE_X: invalid constraint {value:?}: {rule}")
            );
        }
        let long = "cuda>=1 ".repeat(10_000);
        let text = Requirement::parse("NVIDIA_REQUIRE_X", &long).unwrap_err().to_string();
        assert!(text.ends_with("it has more than 64 KiB"), "{text}");
    }

    #[test]
    fn variables_are_chosen_by_name() {
        let of = |pairs: &[(&'static str, &'static str)]| {
            let found = requirements(&pairs.iter().copied().collect());
            found.unwrap().into_iter().map(|r| format!("{}={}", r.variable, r.text)).collect::<Vec<_>>()
        };
        assert_eq!(
            of(&[
                ("NVIDIA_REQUIRE_CUDA", "cuda>=1"),
                ("NVIDIA_REQUIRE_ARCH", "arch>=7"),
                ("CUDA_VERSION", "12.4.1")
            ]),
            ["NVIDIA_REQUIRE_ARCH=arch>=7", "NVIDIA_REQUIRE_CUDA=cuda>=1"]
        );
        assert_eq!(of(&[("CUDA_VERSION", "7.5.18")]), ["CUDA_VERSION=cuda>=7.5"]);
        assert_eq!(of(&[("CUDA_VERSION", "8")]), ["CUDA_VERSION=cuda>=8.0"]);
        assert!(of(&[("CUDA_VERSION", "latest")]).is_empty());
        assert!(of(&[("NVIDIA_REQUIRE_JETPACK", "csv-mounts=all")]).is_empty());
        assert!(of(&[("NVIDIA_REQUIRE_CUDA", "nonsense"), ("NVIDIA_DISABLE_REQUIRE", "true")]).is_empty());
        assert_eq!(of(&[("NVIDIA_REQUIRE_CUDA", "cuda>=1"), ("NVIDIA_DISABLE_REQUIRE", "no")]).len(), 1);
    }

    #[test]
    fn brands_follow_from_products() {
        for (product, expected) in [
            ("NVIDIA A100-SXM4-80GB", "nvidia"),
            ("NVIDIA H200", "nvidia"),
            ("Tesla T4", "tesla"),
            ("NVIDIA GeForce RTX 4090", "geforcertx"),
            ("GeForce GTX 1080", "geforce"),
            ("NVIDIA RTX A6000", "nvidiartx"),
            ("Quadro RTX 6000", "quadrortx"),
            ("TITAN V", "titan"),
        ] {
            assert_eq!(brand(product), expected, "{product}");
        }
    }
}
