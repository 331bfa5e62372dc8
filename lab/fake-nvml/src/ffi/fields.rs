//! `nvmlDeviceGetFieldValues`.

#![expect(unsafe_code, reason = "exported symbols")]

use std::ffi::c_int;

use nvml_wrapper_sys::bindings::field_id::{
    NVML_FI_DEV_ECC_CURRENT, NVML_FI_DEV_ECC_DBE_AGG_TOTAL, NVML_FI_DEV_ECC_DBE_VOL_TOTAL,
    NVML_FI_DEV_ECC_PENDING, NVML_FI_DEV_ECC_SBE_AGG_TOTAL, NVML_FI_DEV_ECC_SBE_VOL_TOTAL,
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, NVML_FI_DEV_MEMORY_TEMP, NVML_FI_DEV_NVLINK_LINK_COUNT,
    NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON, NVML_FI_DEV_PCIE_REPLAY_COUNTER, NVML_FI_DEV_POWER_AVERAGE,
    NVML_FI_DEV_POWER_INSTANT, NVML_FI_DEV_REMAPPED_COR, NVML_FI_DEV_REMAPPED_FAILURE,
    NVML_FI_DEV_REMAPPED_PENDING, NVML_FI_DEV_REMAPPED_UNC, NVML_FI_MAX,
};
use nvml_wrapper_sys::bindings::{nvmlFieldValue_t, nvmlValue_t};

use super::{Code, Context, Device, Out, Result, api, health, link};
use crate::Card;
use crate::state::now_us;

/// NVML's numbers of types.
const UINT: u32 = 1;
const ULONG_LONG: u32 = 3;

/// The first driver that tells what must be done about a card.
const RECOVERY_SINCE: u32 = 565;

fn value(cx: &Context, card: &Card, field: u32) -> Result<(u32, u64)> {
    let uint = |value: u32| Ok((UINT, u64::from(value)));
    let driver =
        cx.node.config.driver_version.split('.').next().and_then(|text| text.parse().ok()).unwrap_or(0);
    match field {
        NVML_FI_DEV_ECC_CURRENT | NVML_FI_DEV_ECC_PENDING => {
            uint(u32::from(card.ecc().ok_or(Code::NOT_SUPPORTED)?))
        }
        NVML_FI_DEV_ECC_SBE_VOL_TOTAL | NVML_FI_DEV_ECC_SBE_AGG_TOTAL => {
            Ok((ULONG_LONG, health::errors(card, 0)?))
        }
        NVML_FI_DEV_ECC_DBE_VOL_TOTAL | NVML_FI_DEV_ECC_DBE_AGG_TOTAL => {
            Ok((ULONG_LONG, health::errors(card, 1)?))
        }
        NVML_FI_DEV_MEMORY_TEMP => uint(card.device.thermal.temperature_memory_c.ok_or(Code::NOT_SUPPORTED)?),
        NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON => uint(link::speed(card)?),
        NVML_FI_DEV_NVLINK_LINK_COUNT => uint(link::lanes(card)?),
        NVML_FI_DEV_PCIE_REPLAY_COUNTER => uint(0),
        NVML_FI_DEV_REMAPPED_COR => uint(health::remapped(card)?[0]),
        NVML_FI_DEV_REMAPPED_UNC => uint(health::remapped(card)?[1]),
        NVML_FI_DEV_REMAPPED_PENDING => uint(health::remapped(card)?[2]),
        NVML_FI_DEV_REMAPPED_FAILURE => uint(health::remapped(card)?[3]),
        NVML_FI_DEV_POWER_AVERAGE | NVML_FI_DEV_POWER_INSTANT => uint(card.readings().power_milliwatts),
        NVML_FI_DEV_GET_GPU_RECOVERY_ACTION if driver >= RECOVERY_SINCE => uint(card.state.recovery_action),
        1..NVML_FI_MAX => Err(Code::NOT_SUPPORTED),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

api! {
    fn nvmlDeviceGetFieldValues(device: Device, count: c_int, values: Out<nvmlFieldValue_t>) |cx| {
        let card = cx.gpu(device)?;
        for index in 0..usize::try_from(count).map_err(|_| Code::INVALID_ARGUMENT)? {
            let mut field = values.get_at(index)?;
            field.timestamp = now_us().cast_signed();
            field.latencyUsec = 0;
            match value(cx, card, field.fieldId) {
                Ok((kind, value)) => {
                    field.valueType = kind;
                    field.value = nvmlValue_t { ullVal: value };
                    field.nvmlReturn = 0;
                }
                Err(code) => field.nvmlReturn = code.0,
            }
            values.put_at(index, field)?;
        }
        Ok(())
    };
}
