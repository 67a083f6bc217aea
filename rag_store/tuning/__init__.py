"""An encoder learns which questions are about which document of a corpus."""
