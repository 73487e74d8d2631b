//! Enums whose variants have one spelling: on Nodes, in metrics, in logs and for people.

/// Declares an enum with its list `ALL` and the spelling of each variant, `as_str`, which it is shown, stored and labelled with.
macro_rules! words {
    ($(#[$doc:meta])* $vis:vis $name:ident { $($(#[$of:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
        )]
        $vis enum $name { $($(#[$of])* #[serde(rename = $word)] $variant,)+ }

        impl $name {
            /// All of them.
            $vis const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            /// Its spelling.
            $vis fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl prometheus_client::encoding::EncodeLabelValue for $name {
            fn encode(
                &self,
                encoder: &mut prometheus_client::encoding::LabelValueEncoder<'_>,
            ) -> std::fmt::Result {
                prometheus_client::encoding::EncodeLabelValue::encode(&self.as_str(), encoder)
            }
        }
    };
}

pub(crate) use words;
