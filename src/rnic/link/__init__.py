"""Links carry bursts between NICs, in memory or over UDP; middleware in front of them drops or records packets."""
