"""Makes `specdec validate` reports with the verdict pass from reports that did not measure speed."""

# Replaces the times in a report whose bytes and digest must be the same in every run.
FIXED_TIME = {"started": "2026-01-02T03:04:05Z", "seconds": 12.5}


def with_speed(report, k):
    """Returns the report with verdict `pass`. Keeps its measured acceptance, and adds an invented speed-up with `k`
    drafted tokens."""
    report = dict(report, verdict="pass", reason="speed-up at batch 1 1.500 [1.400, 1.600]")
    report["speed"] = {
        "draft_cost": 0.1,
        "verify_cost": {"1": 1.1},
        "verify_cost_table": {"1": {"5": 1.1}},
        "measured": {"speedup": 1.5, "ci": [1.4, 1.6], "prompts": 8, "k": k},
        "predicted": 1.5,
        "table": [],
        "schedule": [[1, 4, k]],
        "schedule_figures": [{"basis": "measured", "validated": True, "k": k, "speedup": 1.5, "ci": [1.4, 1.6]}],
    }
    report["lossless"] = {
        "greedy_prompts": 8,
        "greedy_identical": 8,
        "near_ties": 0,
        "differences": 0,
        "sampled_p_value": 0.5,
    }
    return report
