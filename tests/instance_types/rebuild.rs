//! Makes `src/aws/instance-types.tsv`.
//!
//! ```text
//! aws ec2 describe-instance-types --output json > dump.json
//! cargo run --example instance-types -- dump.json src/aws/instance-types.tsv 'us-east-1, 2026-08-01'
//! ```
//!
//! Reads that, or a map from names to types as moto has it. What the fields mean is not decided here: they become
//! what the SDK makes of EC2's answer, and `TypeInfo::from_sdk` reads that.

use anyhow::{Context as _, bail};
use aws_sdk_ec2::types::{
    ArchitectureType, EphemeralNvmeSupport, GpuDeviceInfo, GpuInfo, InferenceAcceleratorInfo,
    InferenceDeviceInfo, InstanceStorageInfo, InstanceTypeHypervisor, InstanceTypeInfo, MemoryInfo,
    NetworkCardInfo, NetworkInfo, NeuronDeviceCoreInfo, NeuronDeviceInfo, NeuronInfo, ProcessorInfo,
    VCpuInfo,
};
use ebbtide::aws::{TypeInfo, type_table};
use serde_json::Value;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [dump, table, source] = &arguments[..] else { bail!("usage: instance-types DUMP TABLE SOURCE") };
    let text = std::fs::read_to_string(dump).with_context(|| dump.clone())?;
    let dump: Value = serde_json::from_str(&text).context("the dump is no JSON")?;
    let types = described(&dump)?.into_iter().filter_map(|one| TypeInfo::from_sdk(&answer(one))).collect();
    std::fs::write(table, type_table::render(types, source)).with_context(|| table.clone())
}

/// The types of either form of a dump.
fn described(dump: &Value) -> anyhow::Result<Vec<&Value>> {
    let map = dump.as_object().context("the dump is no JSON object")?;
    let types: Vec<_> = match map.get("InstanceTypes") {
        Some(list) => list.as_array().context("InstanceTypes is no list")?.iter().collect(),
        None => map.values().collect(),
    };
    if types.is_empty() {
        bail!("the dump has no types");
    }
    Ok(types)
}

/// As the SDK has it: the fields that `TypeInfo::from_sdk` reads.
fn answer(from: &Value) -> InstanceTypeInfo {
    let cards = items(from, "/NetworkInfo/NetworkCards").map(|card| {
        NetworkCardInfo::builder()
            .set_network_card_index(number(card, "/NetworkCardIndex"))
            .set_maximum_network_interfaces(number(card, "/MaximumNetworkInterfaces"))
            .build()
    });
    let network = NetworkInfo::builder()
        .set_default_network_card_index(number(from, "/NetworkInfo/DefaultNetworkCardIndex"))
        .set_maximum_network_interfaces(number(from, "/NetworkInfo/MaximumNetworkInterfaces"))
        .set_ipv4_addresses_per_interface(number(from, "/NetworkInfo/Ipv4AddressesPerInterface"))
        .set_network_cards(Some(cards.collect()));
    let architectures = items(from, "/ProcessorInfo/SupportedArchitectures");
    let architectures = architectures.filter_map(|name| name.as_str()).map(ArchitectureType::from);
    let memory = from.pointer("/MemoryInfo/SizeInMiB").and_then(Value::as_i64);
    InstanceTypeInfo::builder()
        .set_instance_type(text(from, "/InstanceType").map(|name| name.as_str().into()))
        .v_cpu_info(VCpuInfo::builder().set_default_v_cpus(number(from, "/VCpuInfo/DefaultVCpus")).build())
        .memory_info(MemoryInfo::builder().set_size_in_mib(memory).build())
        .processor_info(
            ProcessorInfo::builder().set_supported_architectures(Some(architectures.collect())).build(),
        )
        .set_hypervisor(text(from, "/Hypervisor").map(|name| InstanceTypeHypervisor::from(name.as_str())))
        .set_bare_metal(from.pointer("/BareMetal").and_then(Value::as_bool))
        .network_info(network.build())
        .set_instance_storage_info(from.get("InstanceStorageInfo").map(storage))
        .set_gpu_info(from.get("GpuInfo").map(gpus))
        .set_neuron_info(from.get("NeuronInfo").map(neurons))
        .set_inference_accelerator_info(from.get("InferenceAcceleratorInfo").map(inference))
        .build()
}

fn storage(from: &Value) -> InstanceStorageInfo {
    let nvme = text(from, "/NvmeSupport").map(|word| EphemeralNvmeSupport::from(word.as_str()));
    InstanceStorageInfo::builder()
        .set_total_size_in_gb(from.get("TotalSizeInGB").and_then(Value::as_i64))
        .set_nvme_support(nvme)
        .build()
}

fn gpus(from: &Value) -> GpuInfo {
    let gpus = items(from, "/Gpus").map(|gpu| {
        GpuDeviceInfo::builder()
            .set_name(text(gpu, "/Name"))
            .set_manufacturer(text(gpu, "/Manufacturer"))
            .set_count(number(gpu, "/Count"))
            .set_logical_gpu_count(number(gpu, "/LogicalGpuCount"))
            .build()
    });
    GpuInfo::builder().set_gpus(Some(gpus.collect())).build()
}

fn neurons(from: &Value) -> NeuronInfo {
    let devices = items(from, "/NeuronDevices").map(|device| {
        let cores = NeuronDeviceCoreInfo::builder().set_count(number(device, "/CoreInfo/Count"));
        NeuronDeviceInfo::builder()
            .set_name(text(device, "/Name"))
            .set_count(number(device, "/Count"))
            .core_info(cores.build())
            .build()
    });
    NeuronInfo::builder().set_neuron_devices(Some(devices.collect())).build()
}

fn inference(from: &Value) -> InferenceAcceleratorInfo {
    let chips = items(from, "/Accelerators").map(|chip| {
        InferenceDeviceInfo::builder()
            .set_name(text(chip, "/Name"))
            .set_manufacturer(text(chip, "/Manufacturer"))
            .set_count(number(chip, "/Count"))
            .build()
    });
    InferenceAcceleratorInfo::builder().set_accelerators(Some(chips.collect())).build()
}

fn items<'a>(from: &'a Value, at: &str) -> impl Iterator<Item = &'a Value> {
    from.pointer(at).and_then(Value::as_array).into_iter().flatten()
}

fn number(from: &Value, at: &str) -> Option<i32> {
    from.pointer(at)?.as_i64()?.try_into().ok()
}

fn text(from: &Value, at: &str) -> Option<String> {
    from.pointer(at)?.as_str().map(str::to_owned)
}
