//! The instance types the simulated EC2 offers: eight real ones, with the figures EC2 gives for them.
//!
//! They are chosen for their differences: two sizes of a family, both architectures, a burstable one, one with a GPU
//! and a local disk, one with an inference accelerator.
//!
//! <https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_InstanceTypeInfo.html>; figures from
//! <https://docs.aws.amazon.com/ec2/latest/instancetypes/instance-types.html>

use super::xml::Xml;

/// An instance type.
#[derive(Debug)]
pub(super) struct InstanceType {
    pub(super) name: &'static str,
    pub(super) vcpus: u32,
    cores: u32,
    pub(super) memory_mib: u32,
    pub(super) architecture: &'static str,
    manufacturer: &'static str,
    clock_ghz: f64,
    interfaces: u32,
    addresses: u32,
    network: &'static str,
    disk_gb: Option<u32>,
    gpu: Option<Accelerator>,
    inference: Option<Accelerator>,
}

/// A GPU or an inference chip.
#[derive(Debug)]
struct Accelerator {
    name: &'static str,
    manufacturer: &'static str,
    count: u32,
    memory_mib: u32,
}

const UP_TO_5: &str = "Up to 5 Gigabit";
const UP_TO_10: &str = "Up to 10 Gigabit";
const UP_TO_25: &str = "Up to 25 Gigabit";

/// A current Intel type with two threads a core and no extras; the others say what differs.
const PLAIN: InstanceType = InstanceType {
    name: "",
    vcpus: 2,
    cores: 1,
    memory_mib: 8192,
    architecture: "x86_64",
    manufacturer: "Intel",
    clock_ghz: 3.1,
    interfaces: 3,
    addresses: 10,
    network: UP_TO_10,
    disk_gb: None,
    gpu: None,
    inference: None,
};

/// All of them.
pub(super) static TYPES: [InstanceType; 8] = [
    InstanceType { name: "m5.large", ..PLAIN },
    InstanceType {
        name: "m5.xlarge",
        vcpus: 4,
        cores: 2,
        memory_mib: 16384,
        interfaces: 4,
        addresses: 15,
        ..PLAIN
    },
    InstanceType { name: "c5.large", memory_mib: 4096, clock_ghz: 3.4, ..PLAIN },
    InstanceType {
        name: "m6g.large",
        cores: 2,
        architecture: "arm64",
        manufacturer: "AWS",
        clock_ghz: 2.5,
        ..PLAIN
    },
    InstanceType {
        name: "t3.medium",
        memory_mib: 4096,
        clock_ghz: 2.5,
        addresses: 6,
        network: UP_TO_5,
        ..PLAIN
    },
    InstanceType {
        name: "g4dn.xlarge",
        vcpus: 4,
        cores: 2,
        memory_mib: 16384,
        clock_ghz: 2.5,
        network: UP_TO_25,
        disk_gb: Some(125),
        gpu: Some(Accelerator { name: "T4", manufacturer: "NVIDIA", count: 1, memory_mib: 16384 }),
        ..PLAIN
    },
    InstanceType {
        name: "inf1.xlarge",
        vcpus: 4,
        cores: 2,
        interfaces: 4,
        clock_ghz: 2.5,
        network: UP_TO_25,
        inference: Some(Accelerator { name: "Inferentia", manufacturer: "AWS", count: 1, memory_mib: 8192 }),
        ..PLAIN
    },
    InstanceType { name: "r5.large", memory_mib: 16384, ..PLAIN },
];

/// The type called `name`.
pub(super) fn find(name: &str) -> Option<&'static InstanceType> {
    TYPES.iter().find(|candidate| candidate.name == name)
}

impl InstanceType {
    pub(super) fn accelerators(&self) -> u32 {
        self.gpu.iter().chain(&self.inference).map(|accelerator| accelerator.count).sum()
    }

    pub(super) fn burstable(&self) -> bool {
        self.name.starts_with('t')
    }

    pub(super) fn bare_metal(&self) -> bool {
        self.name.contains("metal")
    }

    /// Writes an `InstanceTypeInfo`.
    pub(super) fn write(&self, xml: &mut Xml) {
        xml.text("instanceType", self.name)
            .text("currentGeneration", true)
            .values("supportedUsageClasses", "item", ["on-demand", "spot"])
            .values("supportedRootDeviceTypes", "item", ["ebs"])
            .values("supportedVirtualizationTypes", "item", ["hvm"])
            .text("bareMetal", self.bare_metal())
            .text("hypervisor", "nitro")
            .inside("processorInfo", |xml| {
                xml.values("supportedArchitectures", "item", [self.architecture])
                    .text("sustainedClockSpeedInGhz", self.clock_ghz)
                    .text("manufacturer", self.manufacturer);
            })
            .inside("vCpuInfo", |xml| {
                xml.text("defaultVCpus", self.vcpus)
                    .text("defaultCores", self.cores)
                    .text("defaultThreadsPerCore", self.vcpus / self.cores);
            })
            .inside("memoryInfo", |xml| {
                xml.text("sizeInMiB", self.memory_mib);
            })
            .text("instanceStorageSupported", self.disk_gb.is_some());
        if let Some(size) = self.disk_gb {
            write_storage(xml, size);
        }
        xml.inside("ebsInfo", |xml| {
            xml.text("ebsOptimizedSupport", "default")
                .text("encryptionSupport", "supported")
                .text("nvmeSupport", "required");
        });
        self.write_network(xml);
        if let Some(gpu) = &self.gpu {
            xml.inside("gpuInfo", |xml| {
                xml.list("gpus", "item", [gpu], |xml, gpu| gpu.write(xml))
                    .text("totalGpuMemoryInMiB", gpu.count * gpu.memory_mib);
            });
        }
        if let Some(chip) = &self.inference {
            xml.inside("inferenceAcceleratorInfo", |xml| {
                // This one list is spelled with `member`, in EC2 itself.
                xml.list("accelerators", "member", [chip], |xml, chip| chip.write(xml))
                    .text("totalInferenceMemoryInMiB", chip.count * chip.memory_mib);
            });
        }
        xml.text("burstablePerformanceSupported", self.burstable());
    }

    fn write_network(&self, xml: &mut Xml) {
        xml.inside("networkInfo", |xml| {
            xml.text("networkPerformance", self.network)
                .text("maximumNetworkInterfaces", self.interfaces)
                .text("maximumNetworkCards", 1)
                .text("defaultNetworkCardIndex", 0)
                .list("networkCards", "item", [self], |xml, this| {
                    xml.text("networkCardIndex", 0)
                        .text("networkPerformance", this.network)
                        .text("maximumNetworkInterfaces", this.interfaces);
                })
                .text("ipv4AddressesPerInterface", self.addresses)
                .text("ipv6AddressesPerInterface", self.addresses)
                .text("ipv6Supported", true)
                .text("enaSupport", "required")
                .text("efaSupported", false);
        });
    }
}

impl Accelerator {
    fn write(&self, xml: &mut Xml) {
        xml.text("name", self.name).text("manufacturer", self.manufacturer).text("count", self.count).inside(
            "memoryInfo",
            |xml| {
                xml.text("sizeInMiB", self.memory_mib);
            },
        );
    }
}

fn write_storage(xml: &mut Xml, size: u32) {
    xml.inside("instanceStorageInfo", |xml| {
        xml.text("totalSizeInGB", size)
            .list("disks", "item", [size], |xml, size| {
                xml.text("sizeInGB", size).text("count", 1).text("type", "ssd");
            })
            .text("nvmeSupport", "required")
            .text("encryptionSupport", "required");
    });
}
