//! The instance types that the simulated EC2 offers: real ones, with EC2's figures.
//!
//! Chosen for variety: sizes of a family, both architectures, burstable, Nitro, Xen and bare metal, one network card and
//! many, GPUs, a local disk, AWS's own chips. The list is independent of the program's own table of types.
//!
//! <https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_InstanceTypeInfo.html>; figures from
//! <https://docs.aws.amazon.com/ec2/latest/instancetypes/instance-types.html>

use super::xml::Xml;

#[derive(Debug)]
pub(super) struct InstanceType {
    pub(super) name: &'static str,
    pub(super) vcpus: u32,
    pub(super) memory_mib: u32,
    pub(super) architecture: &'static str,
    hypervisor: Option<&'static str>,
    /// Network interfaces per card.
    interfaces: u32,
    addresses: u32,
    cards: u32,
    network: &'static str,
    disk_gb: Option<u32>,
    gpu: Option<Accelerator>,
    neuron: Option<Accelerator>,
}

/// A GPU or one of AWS's own chips.
#[derive(Debug)]
struct Accelerator {
    name: &'static str,
    manufacturer: &'static str,
    count: u32,
    memory_mib: u32,
    cores: u32,
}

const GIB: u32 = 1024;
const UP_TO_5: &str = "Up to 5 Gigabit";
const UP_TO_10: &str = "Up to 10 Gigabit";
const UP_TO_25: &str = "Up to 25 Gigabit";

/// A current type with one network card and no extras; the others state what differs.
const fn plain(
    name: &'static str,
    vcpus: u32,
    memory_mib: u32,
    interfaces: u32,
    addresses: u32,
) -> InstanceType {
    InstanceType {
        name,
        vcpus,
        memory_mib,
        architecture: "x86_64",
        hypervisor: Some("nitro"),
        interfaces,
        addresses,
        cards: 1,
        network: UP_TO_10,
        disk_gb: None,
        gpu: None,
        neuron: None,
    }
}

const fn nvidia(name: &'static str, count: u32, memory_mib: u32) -> Accelerator {
    Accelerator { name, manufacturer: "NVIDIA", count, memory_mib, cores: 0 }
}

const fn neuron(name: &'static str, count: u32, memory_mib: u32, cores: u32) -> Accelerator {
    Accelerator { name, manufacturer: "AWS", count, memory_mib, cores }
}

pub(super) static TYPES: [InstanceType; 20] = [
    plain("m5.large", 2, 8 * GIB, 3, 10),
    plain("m5.xlarge", 4, 16 * GIB, 4, 15),
    plain("c5.large", 2, 4 * GIB, 3, 10),
    InstanceType { architecture: "arm64", ..plain("m6g.large", 2, 8 * GIB, 3, 10) },
    InstanceType { network: UP_TO_5, ..plain("t3.medium", 2, 4 * GIB, 3, 6) },
    InstanceType {
        network: UP_TO_25,
        disk_gb: Some(125),
        gpu: Some(nvidia("T4", 1, 16 * GIB)),
        ..plain("g4dn.xlarge", 4, 16 * GIB, 3, 10)
    },
    InstanceType {
        network: UP_TO_25,
        neuron: Some(neuron("Inferentia", 1, 8 * GIB, 4)),
        ..plain("inf1.xlarge", 4, 8 * GIB, 4, 10)
    },
    plain("r5.large", 2, 16 * GIB, 3, 10),
    plain("m5.4xlarge", 16, 64 * GIB, 8, 30),
    InstanceType { hypervisor: None, network: "25 Gigabit", ..plain("m5.metal", 96, 384 * GIB, 15, 50) },
    InstanceType { network: UP_TO_5, ..plain("t3.micro", 2, GIB, 2, 2) },
    InstanceType {
        hypervisor: Some("xen"),
        network: "Low to Moderate",
        ..plain("t2.medium", 2, 4 * GIB, 3, 6)
    },
    InstanceType { architecture: "arm64", ..plain("c6g.medium", 1, 2 * GIB, 2, 4) },
    InstanceType { architecture: "arm64", ..plain("c7g.4xlarge", 16, 32 * GIB, 8, 30) },
    InstanceType {
        hypervisor: Some("xen"),
        gpu: Some(nvidia("V100", 1, 16 * GIB)),
        ..plain("p3.2xlarge", 8, 61 * GIB, 4, 15)
    },
    InstanceType {
        network: "40 Gigabit",
        disk_gb: Some(3800),
        gpu: Some(nvidia("A10G", 4, 22_888)),
        ..plain("g5.12xlarge", 48, 192 * GIB, 15, 50)
    },
    InstanceType {
        cards: 4,
        network: "4x 100 Gigabit",
        disk_gb: Some(8000),
        gpu: Some(nvidia("A100", 8, 40 * GIB)),
        ..plain("p4d.24xlarge", 96, 1152 * GIB, 15, 50)
    },
    InstanceType {
        cards: 32,
        network: "3200 Gigabit",
        disk_gb: Some(30400),
        gpu: Some(nvidia("H100", 8, 80 * GIB)),
        ..plain("p5.48xlarge", 192, 2048 * GIB, 2, 50)
    },
    InstanceType {
        network: "Up to 15 Gigabit",
        neuron: Some(neuron("Inferentia2", 1, 32 * GIB, 2)),
        ..plain("inf2.xlarge", 4, 16 * GIB, 4, 15)
    },
    InstanceType {
        cards: 8,
        network: "8x 100 Gigabit",
        disk_gb: Some(7600),
        neuron: Some(neuron("Trainium", 16, 32 * GIB, 2)),
        ..plain("trn1.32xlarge", 128, 512 * GIB, 5, 50)
    },
];

/// The type called `name`.
pub(super) fn find(name: &str) -> Option<&'static InstanceType> {
    TYPES.iter().find(|candidate| candidate.name == name)
}

impl InstanceType {
    pub(super) fn accelerators(&self) -> u32 {
        self.gpu.iter().chain(&self.neuron).map(|accelerator| accelerator.count).sum()
    }

    pub(super) fn burstable(&self) -> bool {
        self.name.starts_with('t')
    }

    pub(super) fn bare_metal(&self) -> bool {
        self.hypervisor.is_none()
    }

    /// Writes an `InstanceTypeInfo`.
    pub(super) fn write(&self, xml: &mut Xml) {
        xml.text("instanceType", self.name)
            .text("currentGeneration", true)
            .values("supportedUsageClasses", "item", ["on-demand", "spot"])
            .values("supportedRootDeviceTypes", "item", ["ebs"])
            .values("supportedVirtualizationTypes", "item", ["hvm"])
            .text("bareMetal", self.bare_metal())
            .optional("hypervisor", self.hypervisor)
            .inside("processorInfo", |xml| {
                xml.values("supportedArchitectures", "item", [self.architecture]);
            })
            .inside("vCpuInfo", |xml| {
                let threads = if self.architecture == "arm64" { 1 } else { 2 };
                xml.text("defaultVCpus", self.vcpus)
                    .text("defaultCores", self.vcpus / threads)
                    .text("defaultThreadsPerCore", threads);
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
        if let Some(chip) = &self.neuron {
            chip.write_neuron(xml);
        }
        xml.text("burstablePerformanceSupported", self.burstable());
    }

    fn write_network(&self, xml: &mut Xml) {
        xml.inside("networkInfo", |xml| {
            xml.text("networkPerformance", self.network)
                .text("maximumNetworkInterfaces", self.cards * self.interfaces)
                .text("maximumNetworkCards", self.cards)
                .text("defaultNetworkCardIndex", 0)
                .list("networkCards", "item", 0..self.cards, |xml, index| {
                    xml.text("networkCardIndex", index)
                        .text("networkPerformance", self.network)
                        .text("maximumNetworkInterfaces", self.interfaces);
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

    /// EC2 lists Inferentia in two places, Trainium in one.
    fn write_neuron(&self, xml: &mut Xml) {
        let memory = self.count * self.memory_mib;
        if self.name.starts_with("Inferentia") {
            xml.inside("inferenceAcceleratorInfo", |xml| {
                // EC2 spells this one list with `member`.
                xml.list("accelerators", "member", [self], |xml, chip| chip.write(xml))
                    .text("totalInferenceMemoryInMiB", memory);
            });
        }
        xml.inside("neuronInfo", |xml| {
            xml.list("neuronDevices", "item", [self], |xml, chip| {
                xml.text("name", chip.name).text("count", chip.count).inside("coreInfo", |xml| {
                    xml.text("count", chip.cores);
                });
            })
            .text("totalNeuronDeviceMemoryInMiB", memory);
        });
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
