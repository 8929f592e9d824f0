"""Links carry bursts between NICs: in memory, over UDP; middleware in front of them loses or records packets."""
