//! The names of resources and annotations.

use gantry_model::SharingVocabulary;

/// Whole GPUs.
pub const GPU_RESOURCE: &str = "nvidia.com/gpu";

/// The annotation that names a pod's group.
pub const GROUP_NAME_ANNOTATION: &str = "scheduling.k8s.io/group-name";
/// The newer name of the same. Volcano reads both, and so does Gantry.
pub const VOLCANO_GROUP_NAME_ANNOTATION: &str = "scheduling.volcano.sh/group-name";
/// How many pods of the group must have a place before any starts; 1 if absent, as in Volcano.
pub const GROUP_MIN_MEMBER_ANNOTATION: &str = "scheduling.volcano.sh/group-min-member";

/// Names of GPU sharing, in every vocabulary that manifests use.
const SHARING: [(&str, SharingVocabulary); 10] = [
    ("nvidia.com/gpumem", SharingVocabulary::Memory),
    ("nvidia.com/gpu-memory", SharingVocabulary::Memory),
    ("volcano.sh/vgpu-memory", SharingVocabulary::Memory),
    ("nvidia.com/gpumem-percentage", SharingVocabulary::MemoryPercent),
    ("volcano.sh/vgpu-memory-percentage", SharingVocabulary::MemoryPercent),
    ("nvidia.com/gpucores", SharingVocabulary::Compute),
    ("nvidia.com/gpu-core", SharingVocabulary::Compute),
    ("volcano.sh/vgpu-cores", SharingVocabulary::Compute),
    ("nvidia.com/gpu.shared", SharingVocabulary::TimeSlices),
    ("volcano.sh/vgpu-number", SharingVocabulary::Shares),
];

/// The profile follows, as in `nvidia.com/mig-1g.5gb`.
const PARTITION_PREFIX: &str = "nvidia.com/mig-";

/// What a name of GPU sharing means; `None` for every other name.
pub(crate) fn sharing(name: &str) -> Option<SharingVocabulary> {
    let known = SHARING.iter().find(|(known, _)| *known == name).map(|(_, meaning)| *meaning);
    known.or_else(|| name.starts_with(PARTITION_PREFIX).then_some(SharingVocabulary::Partition))
}
