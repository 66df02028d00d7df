"""System checks: settings that break the promise of `jobs`, or make it slow. With an error no worker starts."""
