# SPDX-License-Identifier: Apache-2.0
"""python -m inagg_testbed.compare > docs/compare.schema.json: the JSON Schema of compare.json."""

import json

from inagg_testbed.compare.figures import ComparisonFigures

print(json.dumps(ComparisonFigures.model_json_schema(), indent=2))
