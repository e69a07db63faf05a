# SPDX-License-Identifier: Apache-2.0
"""What an installation brings.

`test_requirements` and `test_commands` take seconds: they compare requirements with imports, and block modules.
`python -m tests.packaging` (make wheel-test) builds the wheel and uses it in fresh virtual environments.
"""
