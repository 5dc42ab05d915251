"""Checks that other programs accept the files that `specdec init` writes. specdec's own reader reads the TOML file, and
a YAML parser the YAML files. check-jsonschema (schemas of GitHub and GitLab), actionlint, kubernetes-validate,
systemd-analyze and promtool check the files if they are installed. The test also runs the scripts in these files."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from specdec_run import SOURCE, SPECDEC, expect, run, run_json
from tiny_model import write_tiny_model, write_traffic

try:
    import yaml
except ImportError:
    yaml = None
    print("SKIPPED: everything about YAML: no PyYAML in", sys.executable)


def tool(name, *arguments, cwd=None):
    """Runs another project's checker, if it is installed. The checker must find nothing wrong."""
    program = shutil.which(name)
    if not program:
        print(f"SKIPPED: {name} is not installed")
        return
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, cwd=cwd)
    expect(
        done.returncode == 0,
        f"{name} {' '.join(map(str, arguments[:3]))}" + ("" if done.returncode == 0 else done.stdout + done.stderr),
    )


def with_specdec(folder, shell, script, code, output, error=""):
    """Runs a script with a fake specdec in PATH, which prints `output` on stdout and `error` on stderr and exits with
    `code`. Returns exit code, stdout, and the texts that the script wrote to GitHub's summary and output files."""
    stand_in = folder / "bin"
    stand_in.mkdir(exist_ok=True)
    say = f"printf '%s' '{output}'\nprintf '%s' '{error}' >&2\n"
    (stand_in / "specdec").write_text(f"#!/bin/sh\n{say}exit {code}\n")
    (stand_in / "specdec").chmod(0o755)
    files = {name: folder / name for name in ("summary", "output")}
    done = subprocess.run(
        [*shell, script],
        capture_output=True,
        text=True,
        cwd=folder,
        env={
            "PATH": f"{stand_in}:/usr/bin:/bin",
            "GITHUB_STEP_SUMMARY": str(files["summary"]),
            "GITHUB_OUTPUT": str(files["output"]),
        },
    )
    return done.returncode, done.stdout, {name: f.read_text() if f.exists() else "" for name, f in files.items()}


def check_github(folder):
    flow = yaml.safe_load((folder / ".github/workflows/specdec.yml").read_text())
    job = flow["jobs"]["monitor"]
    expect(
        flow["concurrency"] == {"group": "specdec", "cancel-in-progress": False}
        and flow["permissions"] == {"contents": "read"},
        "GitHub: one at a time, reading only",
    )
    script = job["steps"][1]["run"]
    for code, ends, says in (
        (0, 0, ""),
        (4, 0, "::notice"),
        (75, 0, "::warning"),
        (3, 3, "::error"),
        (5, 5, "::error"),
        (7, 7, "::error"),
    ):
        got, out, files = with_specdec(folder, ["bash", "-e", "-c"], script, code, "drift: 50% less\n")
        expect(
            got == ends and (says in out if says else "::" not in out),
            f"GitHub: exit {code} of the monitor ends the step with {ends}, {says or 'silent'}",
        )
    expect(
        "50%25 less" in out and "drift: 50% less" in files["summary"] and "verdict=drift" in files["output"],
        "GitHub: reason, summary and output",
    )
    # GitHub's runner splits the properties of an annotation at commas, and then decodes %2C.
    annotation = next(line for line in out.splitlines() if line.startswith("::error "))
    properties = dict(p.split("=", 1) for p in annotation.split("::")[1].removeprefix("error ").split(","))
    expect(properties == {"title": "specdec%2C exit 7"}, f"GitHub: the title has the exit code: {properties}")
    (folder / "output").unlink()
    _, out, files = with_specdec(
        folder, ["bash", "-e", "-c"], script, 7, "", "note: x\nspecdec: error: a.db: 3% damaged\n"
    )
    log = (folder / "log.txt").read_text()
    expect(log == "note: x\nspecdec: error: a.db: 3% damaged\n", f"GitHub: the log is kept: {log}")
    expect(
        "::error title=specdec%2C exit 7::error: a.db: 3%25 damaged" in out and files["output"] == "verdict=error\n",
        f"GitHub: an error has its reason, too: {out} {files['output']}",
    )
    tool("check-jsonschema", "--builtin-schema", "vendor.github-workflows", folder / ".github/workflows/specdec.yml")
    (folder / ".github/actionlint.yaml").write_text("self-hosted-runner:\n  labels: [specdec]\n")
    tool("actionlint", "-config-file", folder / ".github/actionlint.yaml", folder / ".github/workflows/specdec.yml")


def check_gitlab(folder):
    job = yaml.safe_load((folder / ".gitlab/specdec.yml").read_text())["specdec"]
    expect(
        job["allow_failure"] == {"exit_codes": [4, 75]} and job["resource_group"] == "specdec",
        "GitLab: 4 and 75 are no failures, never two at once",
    )
    expect(job["script"] == ["specdec --config specdec.toml monitor check"], "GitLab: the script")
    tool("check-jsonschema", "--builtin-schema", "vendor.gitlab-ci", folder / ".gitlab/specdec.yml")


def check_kubernetes(folder):
    cron = yaml.safe_load((folder / "kubernetes/specdec-cronjob.yaml").read_text())
    job = cron["spec"]["jobTemplate"]["spec"]
    pod = job["template"]["spec"]
    expect(
        (cron["apiVersion"], cron["kind"]) == ("batch/v1", "CronJob") and cron["spec"]["concurrencyPolicy"] == "Forbid",
        "CronJob: never two at once",
    )
    expect(
        cron["spec"]["startingDeadlineSeconds"] > 0 and pod["restartPolicy"] == "Never",
        "CronJob: deadline; a failure policy needs restartPolicy Never",
    )
    rules = job["podFailurePolicy"]["rules"]
    action = lambda code: next((r["action"] for r in rules if code in r.get("onExitCodes", {}).get("values", [])), None)
    expect(
        [action(c) for c in (3, 5, 75)] == ["FailJob", "FailJob", "Count"],
        "CronJob: 3 and 5 end the job, 75 is tried again",
    )
    expect(
        all(0 not in r.get("onExitCodes", {}).get("values", []) for r in rules), "CronJob: 0 may not be in the rules"
    )
    container = pod["containers"][0]
    expect(
        all(r["onExitCodes"]["containerName"] == container["name"] for r in rules if "onExitCodes" in r),
        "CronJob: of its own container",
    )
    script = (
        container["args"][0]
        .replace("/tmp/verdict", f"'{folder}/verdict'")
        .replace("/dev/termination-log", f"'{folder}/termination'")
    )
    for code, ends in ((0, 0), (3, 3), (4, 0), (75, 75)):
        got, out, _ = with_specdec(folder, container["command"], script, code, "healthy: " + "x" * 5000)
        expect(
            got == ends and out.startswith("healthy") and (folder / "termination").stat().st_size == 4096,
            f"CronJob: exit {code} of the monitor ends the pod with {ends}",
        )
    tool("kubernetes-validate", "--strict", folder / "kubernetes/specdec-cronjob.yaml")


def check_serving(folder):
    deployment, service = yaml.safe_load_all((folder / "kubernetes/specdec-serve.yaml").read_text())
    pod = deployment["spec"]["template"]
    container = pod["spec"]["containers"][0]
    expect(
        service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
        and deployment["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        and service["spec"]["ports"][0]["targetPort"] == container["ports"][0]["name"],
        "Service: it finds the server's pod and port",
    )
    claim, files = yaml.safe_load_all((folder / "kubernetes/specdec-storage.yaml").read_text())
    mounted = [v["persistentVolumeClaim"]["claimName"] for v in pod["spec"]["volumes"] if "persistentVolumeClaim" in v]
    expect(
        mounted == [claim["metadata"]["name"]] == [files["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"]],
        "server and files are on the claim",
    )
    secret = yaml.safe_load((folder / "kubernetes/specdec-secret.yaml").read_text())
    asked = [e["valueFrom"]["secretKeyRef"] for e in container["env"] if "valueFrom" in e]
    expect(
        {(a["name"], a["key"]) for a in asked} == {(secret["metadata"]["name"], k) for k in secret["stringData"]},
        "the server's secrets are those of the Secret",
    )
    environment = {"SPECDEC_API_KEY": secret["stringData"]["API_KEY"]}
    at = container["command"].index("--host")
    run("serve", "--target", folder / "models/target", *container["command"][at:], env=environment, code=2)
    expect(True, "an empty key is refused")
    for name in ("specdec-jobset", "specdec-pytorchjob", "distill-job"):
        text = (folder / f"kubernetes/{name}.yaml").read_text()
        expect(re.search(r'image: "[^"]*-cuda"', text), f"{name}: a GPU has the image with CUDA")


def check_slurm(folder):
    script = folder / "slurm/specdec.sbatch"
    text = script.read_text()
    expect(
        "#SBATCH --signal=B:TERM@" in text and "#SBATCH --requeue" in text, "Slurm: a signal before the end, requeued"
    )
    tool("shellcheck", "--exclude=SC2016", script)  # SC2016 would object to the path with a dollar sign
    for code, restarts, queued in ((0, "0", False), (3, "0", False), (75, "0", True), (75, "10", False)):
        stand_in = folder / "bin"
        stand_in.mkdir(exist_ok=True)
        note = f'echo "$@" >> {shlex.quote(str(folder / "queued"))}'
        for name, does in (("specdec", f"exit {code}"), ("scontrol", note)):
            (stand_in / name).write_text(f"#!/bin/sh\n{does}\n")
            (stand_in / name).chmod(0o755)
        (folder / "queued").unlink(missing_ok=True)
        environment = {"PATH": f"{stand_in}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": restarts}
        line = text.replace(str(SPECDEC), "specdec")
        done = subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True)
        asked = (folder / "queued").exists() and (folder / "queued").read_text() == "requeue 7\n"
        good = done.returncode == code and asked == queued
        expect(good, f"Slurm: exit {code} after {restarts} restarts is queued again: {queued} {done.stderr}")
    # A signal to the batch shell must reach the loop, and the shell must wait until the loop has ended.
    (stand_in / "specdec").write_text(
        "#!/bin/bash\ntrap 'sleep 0.2; exit 75' TERM\nwhile :; do kill -TERM $PPID; sleep 0.05; done\n"
    )
    done = subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True, timeout=60)
    expect(done.returncode == 75, f"Slurm: SIGTERM is passed on: {done.returncode} {done.stderr}")


def check_jobset(folder):
    jobs = yaml.safe_load((folder / "kubernetes/specdec-jobset.yaml").read_text())
    job = jobs["spec"]["replicatedJobs"][0]
    name = f"{jobs['metadata']['name']}-{job['name']}-0-0.{jobs['metadata']['name']}"
    spec = job["template"]["spec"]
    container = spec["template"]["spec"]["containers"][0]
    variables = {v["name"]: v["value"] for v in container["env"] if "value" in v}
    expect(variables["MASTER_ADDR"] == name, f"JobSet: rank 0 is the first pod, {name}")
    ranks = int(variables["WORLD_SIZE"])
    expect(spec["parallelism"] == spec["completions"] == ranks, f"JobSet: {ranks} pods")
    rules = spec["podFailurePolicy"]["rules"]
    listed = [code for r in rules for code in r["onExitCodes"]["values"]]
    expect(75 not in listed and 0 not in listed and 3 in listed, "JobSet: only 75 and lost pods start it again")
    environment = {**variables, "JOB_COMPLETION_INDEX": str(ranks - 1)}
    _, found, _ = run("--json", "distill", "--print-launch", env=environment)
    found = json.loads(found)
    place = (found["launcher"], found["rank"], found["world_size"], found["master_addr"])
    expect(place == ("kubernetes", ranks - 1, ranks, name), f"JobSet: what a pod finds: {place}")


def check_pytorchjob(folder):
    job = yaml.safe_load((folder / "kubernetes/specdec-pytorchjob.yaml").read_text())
    replicas = job["spec"]["pytorchReplicaSpecs"]
    expect(all(r["restartPolicy"] == "ExitCode" for r in replicas.values()), "PyTorchJob: the exit code decides")
    expect(
        replicas["Master"]["replicas"] == 1 and replicas["Master"]["template"] == replicas["Worker"]["template"], "pods"
    )
    container = replicas["Master"]["template"]["spec"]["containers"][0]
    expect(container["name"] == "pytorch", "PyTorchJob: the container has the operator's name")
    for code, ends in ((0, 0), (3, 3), (7, 7), (75, 143)):
        arguments = [*container["command"], *container["args"]]
        (folder / "bin").mkdir(exist_ok=True)
        (folder / "bin/specdec").write_text(f'#!/bin/sh\necho "$@"\nexit {code}\n')
        (folder / "bin/specdec").chmod(0o755)
        done = subprocess.run(
            arguments, env={"PATH": f"{folder}/bin:/usr/bin:/bin"}, capture_output=True, text=True, timeout=60
        )
        _, target, draft = container["args"]
        told = f"distill --target {target} --data traffic --draft {draft} --out run --resume\n"
        expect(done.returncode == ends and done.stdout == told, f"PyTorchJob: exit {code} is {ends}: {done.stdout}")


def check_launchers(folder):
    """Checks the batch scripts without running them; tests/e2e/batch_test.py runs them."""
    for name in ("slurm/submit.sh", "kubernetes/submit.sh", "slurm/distill.sbatch"):
        tool("shellcheck", "--exclude=SC2016", folder / name)
    job = yaml.safe_load((folder / "kubernetes/distill-job.yaml").read_text())
    container = job["spec"]["template"]["spec"]["containers"][0]
    expect(
        container["workingDir"] == container["volumeMounts"][0]["mountPath"] == str(folder), "Job: the same directory"
    )


def metric_names(expression):
    words = re.findall(r"(?<![\w:\"./-])((?:\w+:)?specdec[:_][\w:]+)", re.sub(r'"[^"]*"', '""', expression))
    return {re.sub(r"_bucket$", "", w) for w in words}


def check_monitoring(folder):
    rules = yaml.safe_load((folder / "monitoring/specdec-rules.yml").read_text())
    dashboard = json.loads((folder / "monitoring/specdec-dashboard.json").read_text())
    expect(dashboard["uid"] == "specdec" and dashboard["schemaVersion"] >= 36, "dashboard: fixed uid")
    variables = [v["name"] for v in dashboard["templating"]["list"]]
    expect(
        variables == ["datasource", "job"]
        and all(p["datasource"]["uid"] == "${datasource}" for p in dashboard["panels"]),
        "dashboard: the data source is a variable",
    )
    expect(
        len({p["id"] for p in dashboard["panels"]}) == len(dashboard["panels"]),
        "dashboard: panels have ids of their own",
    )
    taken = [
        (x, y)
        for p in dashboard["panels"]
        for x in range(p["gridPos"]["x"], p["gridPos"]["x"] + p["gridPos"]["w"])
        for y in range(p["gridPos"]["y"], p["gridPos"]["y"] + p["gridPos"]["h"])
    ]
    expect(len(set(taken)) == len(taken) and max(x for x, _ in taken) < 24, "dashboard: no panel lies on another")
    queries = [t["expr"] for p in dashboard["panels"] for t in p["targets"]]
    all_rules = [r for g in rules["groups"] for r in g["rules"]]
    recorded = {r["record"] for r in all_rules if "record" in r}
    exported = "".join(
        f.read_text()
        for f in [
            SOURCE / "deploy/serve/schedule/metrics.cpp",
            *SOURCE.glob("monitor/**/*.cpp"),
            SOURCE / "cli/monitor.cpp",
        ]
    )
    used = set().union(*map(metric_names, queries + [r["expr"] for r in all_rules])) - recorded
    expect(len(used) >= 19, f"{len(used)} metrics are used")
    for name in sorted(used):
        if not re.search(rf'"[^"]*{re.escape(name)}\b', exported):
            expect(False, f"{name} is exported by specdec")
    expect(True, "all of them are exported by specdec")
    alerts = [r["alert"] for r in all_rules if "alert" in r]
    tested = (SOURCE / "tests/cli/monitoring/rules_test.yml").read_text()
    expect(
        all(f"alertname: {a}" in tested for a in alerts) and all(f"expr: {r}" in tested for r in recorded),
        "every rule has a test for promtool",
    )
    # Writes the dashboard's queries as recording rules, the form that promtool can check.
    as_rules = [
        {"record": f"q{i}", "expr": q.replace("$__rate_interval", "5m").replace("$job", ".*")}
        for i, q in enumerate(queries)
    ]
    (folder / "queries.yml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": as_rules}]}))
    tool("promtool", "check", "rules", folder / "queries.yml", folder / "monitoring/specdec-rules.yml")


work = Path(tempfile.mkdtemp(prefix="specdec-init-"))
try:
    # --- everything, with defaults ---
    folder = work / "all of it"
    code, result = run_json("init", folder)
    expect(
        result["schema"] == "specdec.init/1"
        and {f["action"] for f in result["files"]} == {"written"}
        and len(result["files"]) == 20,
        "twenty files",
    )
    expect(all(Path(f["path"]).is_file() for f in result["files"]), "they are there")
    expect(
        {"verdict", "started", "seconds", "tool_version", "inputs", "next"} <= result.keys(),
        "the fields that every result has",
    )
    loop_next = lambda result: next(n["text"] for n in result["next"] if n["part"] == "loop")
    expect(
        loop_next(result).startswith("specdec serve --target models/target --record recorded "),
        f"without logs, recording comes first: {loop_next(result)}",
    )
    write_tiny_model(folder / "models/target", layers=2, seed=1)
    (folder / "recorded/acceptance").mkdir(parents=True)
    write_traffic(folder / "recorded/day-1.jsonl", 4)
    _, again = run_json("init", folder)
    expect(
        loop_next(again).startswith("specdec loop run LOOP.toml --plan"),
        f"with logs the loop comes first: {loop_next(again)}",
    )
    _, plan = run_json("loop", "run", folder / "LOOP.toml", "--plan")
    expect(plan["verdict"] == "planned" and len(plan["stages"]) == 5, "LOOP.toml: loop run --plan reads it")
    _, _, err = run("--config", folder / "specdec.toml", "monitor", "check", code=7)
    expect("store:production: no package" in err, "specdec.toml: monitor check reads it and misses the package")

    # --- existing files are kept ---
    (folder / "LOOP.toml").write_text("mine")
    actions = lambda r: {Path(f["path"]).name: f["action"] for f in r["files"]}
    _, result = run_json("init", folder)
    expect(
        actions(result)["LOOP.toml"] == "kept"
        and (folder / "LOOP.toml").read_text() == "mine"
        and actions(result)["specdec.toml"] == "unchanged",
        "never overwritten",
    )
    _, result = run_json("init", folder, "--force", "--only", "loop,systemd")
    expect(
        actions(result)
        == {
            "LOOP.toml": "replaced",
            "specdec.toml": "unchanged",
            "specdec.service": "unchanged",
            "specdec.timer": "unchanged",
            "specdec-serve.service": "unchanged",
        },
        "--force --only",
    )
    run("init", folder, "--only", "lop", code=2, last_line=["--only", "lop"])

    # --- paths given relative to the working directory are written relative to the new directory ---
    (work / "from/logs").mkdir(parents=True)
    write_tiny_model(work / "from/models/target", layers=2, seed=1)
    write_traffic(work / "from/logs/day.jsonl", 4)
    before = Path.cwd()
    os.chdir(work / "from")
    (work / "from/store").mkdir()
    (work / "from/loop").mkdir()
    paths = ("--target", "models/target", "--logs", "logs/*.jsonl", "--store", "store", "--state", "/tmp/monitor.db")
    _, out, _ = run("init", "sub/x", *paths)
    os.chdir(before)
    fitted = {name: tomllib.loads((work / "from/sub/x" / name).read_text()) for name in ("LOOP.toml", "specdec.toml")}
    expect(
        fitted["LOOP.toml"]["loop"]["target"] == fitted["specdec.toml"]["monitor"]["target"] == "../../models/target"
        and fitted["LOOP.toml"]["loop"]["logs"] == ["../../logs/*.jsonl"],
        f"rebased: {fitted['LOOP.toml']['loop']}",
    )
    expect(
        fitted["specdec.toml"]["serve"]["record"] == "../../logs"
        and fitted["specdec.toml"]["monitor"]["source"] == ["../../logs/acceptance"],
        "what is recorded is what the loop and the monitor read",
    )
    _, plan = run_json("loop", "run", work / "from/sub/x/LOOP.toml", "--plan")
    expect(plan["verdict"] == "planned", "and the loop finds it")
    expect(
        fitted["LOOP.toml"]["loop"]["store"] == "../../store" and fitted["LOOP.toml"]["loop"]["work"] == "loop",
        f"a store that is named is the one here, a default is one there: {fitted['LOOP.toml']['loop']}",
    )
    expect(
        "(../../models/target ../../store /tmp/monitor.db '../../logs/*.jsonl' are not in this directory" in out
        and "init --image REGISTRY/" in out,
        f"next says what a cluster lacks: {out}",
    )

    # --- values that try to escape from their quotes ---
    odd = work / "odd $x %h 'a'"
    nasty = 'models/"; touch x; $(id) @STORE@ \\ é # %n: [a]'
    run(
        "init",
        odd,
        "--target",
        nasty,
        "--logs",
        "a b/*.jsonl",
        "--logs",
        'c"d',
        "--image",
        'x" : {',
        "--channel",
        "candidate",
        "--state",
        "m n.db",
    )
    settings = tomllib.loads((odd / "LOOP.toml").read_text())["loop"]
    expect(
        settings["target"] == nasty
        and settings["logs"] == ["a b/*.jsonl", 'c"d']
        and settings["channel"] == "candidate",
        "TOML holds every value as it was given",
    )
    monitor = tomllib.loads((odd / "specdec.toml").read_text())["monitor"]
    expect(
        monitor["package"] == "store:production" and monitor["target"] == nasty,
        "what is watched is what serves, not the candidate",
    )
    run("init", work / "x", "--target", "a\nb", code=2, last_line=["--target", "control character"])
    run("init", work / "x", "--channel", "../x", code=2)
    expect(not (work / "x").exists(), "a value that is refused leaves nothing behind")

    if yaml:
        cron = yaml.safe_load((odd / "kubernetes/specdec-cronjob.yaml").read_text())
        expect(
            cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["image"] == 'x" : {',
            "so does YAML",
        )
        expect(
            yaml.safe_load((odd / ".gitlab/specdec.yml").read_text())["specdec"]["artifacts"]["paths"]
            == ["m n.db.report.json"],
            "so does GitLab's",
        )
        check_github(folder)
        check_gitlab(folder)
        check_kubernetes(folder)
        check_serving(folder)
        check_jobset(folder)
        check_pytorchjob(folder)
        check_launchers(folder)
        check_monitoring(folder)

    check_slurm(folder)
    check_slurm(odd)

    # --- systemd units, with a program and a directory whose names must be quoted ---
    tool("systemd-analyze", "verify", folder / "systemd/specdec.service", folder / "systemd/specdec.timer")
    tool("systemd-analyze", "verify", odd / "systemd/specdec.service", odd / "systemd/specdec.timer")
    unit = (odd / "systemd/specdec.service").read_text()
    expect(
        f"WorkingDirectory={str(odd).replace('%', '%%')}\n" in unit and f"ExecStart={SPECDEC} --config" in unit,
        "systemd: directory and program",
    )
finally:
    shutil.rmtree(work, ignore_errors=True)
