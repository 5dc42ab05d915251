"""Checks specdec's launch files with the argument and configuration code of vLLM and SGLang, each engine in its own
process, and parses every YAML file.

python3 engine_parsers_test.py BUILD_DIR

Needs SPECDEC_ENGINE_PACKAGES, a folder with the Python files of the wheels in engines.txt and, in deps/, the
packages of requirements.txt, and SPECDEC_ENGINE_PYTHON, a Python with torch, numpy and pydantic (the one that builds
specdec). Skips without them. `make nightly PARTS="tools checks"` makes the folder once and runs this test."""

import ast
import atexit
import importlib.abc
import importlib.machinery
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from unittest.mock import MagicMock

SKIP = 77
HERE = Path(__file__).resolve()
# Modules that are replaced by a stand-in with every attribute, because they are compiled or not used to read launch
# files. torchcodec is not in the list: transformers works without it, but would ask a stand-in for its version.
STAND_INS = {
    "xgrammar",
    "tvm_ffi",
    "IPython",
    "cv2",
    "soundfile",
    "zmq",
    "flashinfer",
    "triton",
    "sgl_kernel",
    "ray",
    "llguidance",
    "outlines_core",
    "torchvision",
    "decord",
    "torchao",
    "av",
}


class AnyAttribute(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=name)


def any_schema(*_):
    """Returns a pydantic schema that accepts any value. Pydantic calls this method of a class used as the type of a
    field."""
    from pydantic_core import core_schema

    return core_schema.any_schema()


class StandIn(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__") and name != "__version__":
            raise AttributeError(name)
        if name == "__version__":
            value = "0"
        elif name[:1].isupper():
            value = AnyAttribute(name, (), {"__get_pydantic_core_schema__": classmethod(any_schema)})
        else:
            value = MagicMock(name=name)
        setattr(self, name, value)
        return value


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Provides the modules in STAND_INS. It is the last finder, so it is asked only if no other finder has a module."""

    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] in STAND_INS else None

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        pass


def expect(condition, text):
    if not condition:
        print("FAILED:", text)
        sys.exit(1)


def variant(case):
    """Returns the format of the quantised draft with which the case's launch files start; "" if there is none."""
    return case.name.removeprefix("variant-") if case.name.startswith("variant-") else ""


def draft_of(case):
    return str(case / ("draft-" + variant(case) if variant(case) else "draft"))


def arguments_of(script, program):
    """Runs the script with a stand-in for `program`, and returns the arguments with which the script called it."""
    with tempfile.TemporaryDirectory() as bin_dir:
        stand_in = Path(bin_dir, program)
        stand_in.write_text('#!/bin/sh\nfor a in "$@"; do printf \'%s\\0\' "$a"; done\n')
        stand_in.chmod(0o755)
        done = subprocess.run(
            ["bash", str(script)],
            env={**os.environ, "PATH": bin_dir + ":" + os.environ["PATH"], "DRAFT": variant(script.parents[1])},
            capture_output=True,
            check=True,
        )
    return [a.decode() for a in done.stdout.split(b"\0")[:-1]]


# --- functions that run the engines' own code ---


def vllm_on_a_cpu():
    """Imports vLLM in a way that does not look for a GPU and does not import model classes to inspect decoders."""
    import vllm.platforms
    from vllm.platforms.cpu import CpuPlatform

    vllm.platforms._current_platform = CpuPlatform()
    import dataclasses

    from vllm.model_executor.models import registry

    info = {f.name: False for f in dataclasses.fields(registry._ModelInfo)}
    info |= {
        "is_text_generation_model": True,
        "attn_type": "decoder",
        "default_seq_pooling_type": "LAST",
        "default_tok_pooling_type": "ALL",
        "score_type": "bi-encoder",
        "supports_pp": True,
        "supported_video_pruning_methods": (),
    }
    registry._LazyRegisteredModel.inspect_model_cls = lambda self: registry._ModelInfo(
        **info | {"architecture": self.class_name}
    )


def vllm_engine(arguments):
    """Parses the arguments after `vllm serve` with vLLM's parser, and returns its AsyncEngineArgs."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.common.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parsed = make_arg_parser(FlexibleArgumentParser(prog="vllm serve")).parse_args(arguments)
    if getattr(parsed, "model_tag", None):
        parsed.model = parsed.model_tag
    return AsyncEngineArgs.from_cli_args(parsed), parsed


def parse_vllm(arguments):
    """Parses the arguments with vLLM's parser, constructs ModelConfig and SpeculativeConfig, which run their own
    checks, and expands the schedule as vLLM's scheduler does."""
    vllm_on_a_cpu()
    from vllm.config import ParallelConfig
    from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

    expect(arguments[0] == "serve", arguments)
    engine, parsed = vllm_engine(arguments[1:])
    target = engine.create_model_config()
    speculative = engine.create_speculative_config(target_model_config=target, target_parallel_config=ParallelConfig())
    result = {"model": target.model, "dtype": str(target.dtype), "name": parsed.served_model_name, "speculative": None}
    if speculative is not None:
        schedule = speculative.num_speculative_tokens_per_batch_size
        result["speculative"] = {
            "method": speculative.method,
            "model": speculative.model,
            "k": speculative.num_speculative_tokens,
            "draft": speculative.draft_sample_method,
            "rejection": speculative.rejection_sample_method,
            "quantisation": speculative.draft_model_config.quantization,
            "dense": build_dynamic_sd_schedule_lookup(
                [list(s) for s in schedule], 128, speculative.num_speculative_tokens
            )[1:]
            if schedule
            else None,
        }
    return result


def parse_sglang(arguments):
    """Parses the arguments with SGLang's parser, resolves them with ServerArgs, and reads the adaptive file with
    SGLang's own reader."""
    from sglang.srt.speculative.adaptive_spec_params import AdaptiveSpeculativeParams

    expect(arguments[:2] == ["-m", "sglang.launch_server"], arguments)
    args, parsed = sglang_arguments([*arguments[2:], "--device", "cuda"])
    resolve = resolve_sglang(args)
    steps = None
    if parsed.speculative_adaptive_config:
        adaptive = AdaptiveSpeculativeParams(parsed.speculative_num_steps, parsed.speculative_adaptive_config)
        steps = [adaptive.get_steps_for_batch(b) for b in (1, 4, 5, 16, 17, 64, 100)]
    return {
        "model": parsed.model_path,
        "dtype": parsed.dtype,
        "name": parsed.served_model_name,
        "algorithm": parsed.speculative_algorithm,
        "draft": parsed.speculative_draft_model_path,
        "steps": parsed.speculative_num_steps,
        "tokens": parsed.speculative_num_draft_tokens,
        "block": parsed.speculative_use_block_verification,
        "adaptive": steps,
        **resolve,
    }


def sglang_arguments(arguments):
    """Parses the arguments after `-m sglang.launch_server` with SGLang's parser, and returns its ServerArgs."""
    import argparse

    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    parsed = parser.parse_args(arguments)
    return ServerArgs.from_cli_args(parsed), parsed


def resolve_sglang(args):
    """Returns the speculation settings that the server derives from its arguments before it loads a model."""
    from sglang.srt.arg_groups import speculative_hook
    from sglang.srt.arg_groups.overrides import resolved_view

    speculative_hook.handle_speculative_decoding(args)
    view = resolved_view(args)
    return {
        "resolved": {
            "algorithm": view.speculative_algorithm,
            "steps": view.speculative_num_steps,
            "tokens": view.speculative_num_draft_tokens,
            "adaptive": view.speculative_adaptive,
            "rejection": view.speculative_use_rejection_sampling,
        }
    }


def child(answers):
    """Runs in a child process, as FILE --child vllm|sglang: reads {case: argv} from stdin and prints {case: {"ok":
    …} or {"error": …}} as the last line of stdout. `answers` maps an engine to its function."""
    packages = Path(os.environ["SPECDEC_ENGINE_PACKAGES"])
    sys.path[:0] = [str(p) for p in (packages, packages / "deps") if p.is_dir()]
    sys.meta_path.append(Finder())
    parse, results = answers[sys.argv[2]], {}
    for case, arguments in json.load(sys.stdin).items():
        try:
            results[case] = {"ok": parse(arguments)}
        except SystemExit as e:
            results[case] = {"error": f"exit {e.code}"}
        except Exception as e:  # an error of the engine's parser is a result of the test
            results[case] = {"error": f"{type(e).__name__}: {e}"}
            if os.environ.get("SPECDEC_ENGINE_TRACE"):
                import traceback

                traceback.print_exc()
    print("\n" + json.dumps(results))


# --- the test itself ---


# Model families of targets (model_type), each with its class in transformers.
FAMILIES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "mixtral": "MixtralForCausalLM",
}


class Classes:
    """Collects the classes of an engine's model files by parsing their text; importing them needs GPU packages."""

    def __init__(self, folder):
        self.found = {}
        for file in folder.rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.ClassDef):
                    bases = [ast.unparse(b).split("[")[0].split(".")[-1] for b in node.bases]
                    methods = {f.name for f in node.body if isinstance(f, ast.FunctionDef)}
                    self.found.setdefault(node.name, []).append((file.stem, bases, methods))

    def has(self, name, wanted, seen=()):
        """Returns whether the class or one of its bases has the base class or the method `wanted`."""
        for _, bases, methods in self.found.get(name, []):
            if wanted in methods or wanted in bases:
                return True
            if any(self.has(b, wanted, (*seen, name)) for b in bases if b != name and b not in seen):
                return True
        return False


def check_families(packages, by_name):
    """Checks the table in deploy/package/head_support.cpp against the engines' own classes."""
    registry = (Path(packages) / "vllm/model_executor/models/registry.py").read_text()
    vllm = Classes(Path(packages) / "vllm/model_executor/models")
    sglang = Classes(Path(packages) / "sglang/srt/models")
    for family, architecture in FAMILIES.items():
        served_by = re.search(rf'"{architecture}": \("[^"]+", "([^"]+)"\)', registry)[1]
        in_sglang = architecture if architecture in sglang.found else "TransformersForCausalLM"
        for engine, taps in (
            ("vllm", vllm.has(served_by, "SupportsEagle3")),
            ("sglang", sglang.has(in_sglang, "set_eagle3_layers_to_capture")),
        ):
            script = (by_name["family-eagle3-" + family] / "engines" / (engine + ".sh")).read_text()
            drafts = "--speculative" in "".join(x for x in script.splitlines() if not x.startswith("#"))
            expect(drafts == taps, f"{engine}.sh for a target of {family}: the engine has {served_by}, taps: {taps}")
    print(f"ok: vLLM's and SGLang's classes of {len(FAMILIES)} families hand out hidden states where the files say so")


# Families whose graph in llama.cpp has another name.
GRAPHS = {"mistral": "llama", "mixtral": "llama", "qwen3_moe": "qwen3moe", "gemma3_text": "gemma3"}


def check_graphs(graphs, by_name):
    """Checks the table in head_support.cpp: a llama.cpp graph that keeps its layers' inputs can serve a head."""
    for family in FAMILIES:
        graph = (Path(graphs) / (GRAPHS.get(family, family) + ".cpp")).read_text()
        script = (by_name["family-eagle3-" + family] / "engines/llama.cpp.sh").read_text()
        expect(
            ("t_layer_inp" in graph) == ("--spec-type draft-eagle3" in script), f"llama.cpp.sh for a target of {family}"
        )
    print(f"ok: llama.cpp's graphs of {len(FAMILIES)} families keep the inputs of layers where the file says so")


def write_models(case, eagle3):
    sys.path.insert(0, str(HERE.parents[2] / "e2e"))
    from tiny_model import write_tiny_model

    write_tiny_model(case / "target", layers=2, seed=1)
    write_tiny_model(case / "draft", layers=1, seed=2)
    if eagle3:
        config = json.loads((case / "draft/config.json").read_text())
        config |= {
            "architectures": ["LlamaForCausalLMEagle3"],
            "draft_vocab_size": config["vocab_size"] // (2 if "reduced" in case.name else 1),
            "eagle_config": {"use_aux_hidden_state": True},
            "tie_word_embeddings": False,
            "norm_before_residual": False,
        }
        (case / "draft/config.json").write_text(json.dumps(config))
    if variant(case):
        subprocess.run(
            [
                str(Path(sys.argv[1]) / "bin/specdec"),
                "-q",
                "package",
                "quantise",
                "--draft",
                str(case / "draft"),
                "--format",
                variant(case),
                "--out",
                draft_of(case),
            ],
            check=True,
        )


def ask(engine, arguments, file=HERE):
    done = subprocess.run(
        [os.environ["SPECDEC_ENGINE_PYTHON"], str(file), "--child", engine],
        input=json.dumps(arguments),
        capture_output=True,
        text=True,
        env={
            **{k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
            "VLLM_LOGGING_LEVEL": "ERROR",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        },
    )
    expect(done.returncode == 0, f"{engine}: {done.stderr[-3000:]}")
    if os.environ.get("SPECDEC_ENGINE_TRACE"):
        print(done.stderr[-20000:])
    return json.loads(done.stdout.strip().splitlines()[-1])


def check_vllm(case, got):
    k, block, greedy, eagle3, many = facts(case)
    expect("ok" in got, f"vLLM refuses {case.name}: {got}")
    got = got["ok"]
    expect(got["model"] == str(case / "target") and got["name"] == ["org/Chat-7B"], f"{case.name}: {got}")
    expect(got["dtype"] == ("torch.float32" if case.name == "fp32" else "torch.bfloat16"), f"{case.name}: {got}")
    if k == 0:
        return expect(got["speculative"] is None, f"{case.name}: {got}")
    s = got["speculative"]
    expect(
        (s["method"], s["model"], s["k"]) == ("eagle3" if eagle3 else "draft_model", draft_of(case), k),
        f"{case.name}: {s}",
    )
    expect(
        s["quantisation"]
        in {"fp8": ("compressed-tensors",), "int8": ("gptq", "gptq_marlin", "auto_gptq"), "": (None,)}[variant(case)],
        f"{case.name}: {s}",
    )
    expect(
        (s["draft"], s["rejection"]) == ("greedy" if greedy else "probabilistic", "block" if block else "standard"),
        f"{case.name}: {s}",
    )
    expect(s["dense"] == ([5] * 4 + [3] * 12 + [0] * 112 if many else None), f"{case.name}: {s}")


def check_sglang(case, got):
    k, block, greedy, eagle3, many = facts(case)
    expect("ok" in got, f"SGLang refuses {case.name}: {got}")
    got = got["ok"]
    expect(got["model"] == str(case / "target") and got["name"] == "org/Chat-7B", f"{case.name}: {got}")
    if k == 0:
        return expect(got["algorithm"] is None, f"{case.name}: {got}")
    resolved = got["resolved"]
    # SGLang refuses rejection sampling for a head with a reduced vocabulary (speculative/eagle_worker_v2.py).
    samples = eagle3 and "reduced" not in case.name
    expect(got["draft"] == draft_of(case), f"{case.name}: {got}")
    expect(
        (resolved["algorithm"], resolved["steps"], resolved["tokens"])
        == ("EAGLE3" if eagle3 else "STANDALONE", k, k + 1),
        f"{case.name}: {got}",
    )
    expect(
        resolved["rejection"] == (samples and (block or not greedy)) and got["block"] == (samples and block),
        f"{case.name}: {got}",
    )
    expect(
        resolved["adaptive"] == (eagle3 and many)
        and got["adaptive"] == ([5, 5, 3, 3, 0, 0, 0] if eagle3 and many else None),
        f"{case.name}: {got}",
    )


def facts(case):
    many = "one-k" not in case.name
    k = 0 if case.name in ("plain", "lost") else 5 if many else 4
    return k, "block" in case.name, "greedy" in case.name, "eagle3" in case.name, many


def check_yaml(case):
    import yaml

    k, _, _, eagle3, many = facts(case)
    load = lambda name: yaml.safe_load((case / "engines" / name).read_text())
    new, old, kserve, helm = (
        load(n) for n in ("tensorrt-llm.yaml", "tensorrt-llm-1.2.yaml", "kserve.yaml", "helm-values.yaml")
    )
    for config, schedule, eagle in ((new, {4: 5, 16: 3}, "Eagle3"), (old, {1: 5, 5: 3, 17: 0}, "Eagle")):
        expect(config["dtype"] == ("float32" if case.name == "fp32" else "bfloat16"), config)
        expect(("speculative_config" in config) == (k > 0), config)
        if k:
            s = config["speculative_config"]
            expect(
                s["decoding_type"] == (eagle if eagle3 else "Draft_Target" if config is new else "DraftTarget")
                and config["return_perf_metrics"] is True
                and s["speculative_model"] == "draft"
                and s["max_draft_len"] == k,
                config,
            )
            expect(s.get("draft_len_schedule") == (schedule if many else None), config)
    # KServe: these are the fields of LLMInferenceService v1alpha2. The draft is given in the arguments, because
    # KServe's controller would append arguments of its own for spec.speculator.
    expect(
        kserve["apiVersion"] == "serving.kserve.io/v1alpha2"
        and kserve["kind"] == "LLMInferenceService"
        and set(kserve) == {"apiVersion", "kind", "metadata", "spec"},
        kserve,
    )
    expect(set(kserve["spec"]) == {"model", "template"} and set(kserve["spec"]["model"]) == {"name", "uri"}, kserve)
    pod = kserve["spec"]["template"]
    container = pod["containers"][0]
    expect(
        container["volumeMounts"][0]["name"] == pod["volumes"][0]["name"]
        and isinstance(container["env"][0]["value"], str),
        kserve,
    )
    # Helm: these are the types in vllm-stack's values.schema.json.
    spec = helm["servingEngineSpec"]["modelSpec"][0]
    types_of = {
        "name": str,
        "repository": str,
        "tag": str,
        "modelURL": str,
        "replicaCount": int,
        "requestCPU": int,
        "requestMemory": str,
        "requestGPU": int,
        "vllmConfig": dict,
        "extraVolumes": list,
        "extraVolumeMounts": list,
    }
    expect({key: type(value) for key, value in spec.items()} == types_of, helm)
    arguments = spec["vllmConfig"]["extraArgs"]
    expect(all(isinstance(a, str) for a in arguments) and spec["vllmConfig"]["dtype"] == new["dtype"], helm)
    expect(("--speculative-config" in arguments) == (k > 0), helm)
    import shlex

    return ["serve", spec["modelURL"], "--dtype", spec["vllmConfig"]["dtype"], *arguments], [
        "serve",
        "/mnt/package/target",
        "--served-model-name",
        kserve["spec"]["model"]["name"],
        *shlex.split(container["env"][0]["value"]),
    ]


def main():
    work = Path(tempfile.mkdtemp(prefix="specdec-engines-"))
    atexit.register(shutil.rmtree, work, ignore_errors=True)
    test = Path(sys.argv[1]) / "tests" / "package_test"
    subprocess.run(
        [str(test), "--gtest_filter=Launch.FilesForTheEnginesParsers"],
        env={**os.environ, "SPECDEC_LAUNCH_OUT": str(work)},
        check=True,
        capture_output=True,
    )
    everything = {case.name: case for case in sorted(work.iterdir())}
    cases = [case for name, case in everything.items() if not name.startswith("family-")]
    expect(len(cases) == 15 and len(everything) == 15 + len(FAMILIES), f"cases: {list(everything)}")
    try:
        import yaml  # noqa: F401

        pods = {case.name: check_yaml(case) for case in cases}
        print(f"ok: YAML of {len(cases)} plans for TensorRT-LLM 1.2 and 1.3, KServe and Helm")
    except ImportError:
        pods = {}
        print("SKIPPED: no PyYAML: emitted YAML is not parsed")
    if graphs := os.environ.get("SPECDEC_LLAMA_GRAPHS"):
        check_graphs(graphs, everything)
    else:
        print("SKIPPED: SPECDEC_LLAMA_GRAPHS is not set: the targets of llama.cpp are not compared with its graphs")
    packages = os.environ.get("SPECDEC_ENGINE_PACKAGES", "")
    if not packages or not os.environ.get("SPECDEC_ENGINE_PYTHON"):
        print("SKIPPED: SPECDEC_ENGINE_PACKAGES and SPECDEC_ENGINE_PYTHON are not set (see the head of this file)")
        sys.exit(SKIP)
    check_families(packages, everything)
    for case in cases:
        write_models(case, "eagle3" in case.name)
    by_name = {case.name: case for case in cases}
    for engine, script, program, check in (
        ("vllm", "vllm.sh", "vllm", check_vllm),
        ("sglang", "sglang.sh", "python", check_sglang),
    ):
        found = sorted(Path(packages).glob(f"{engine}-*.dist-info"))
        expect(found, f"no {engine} in {packages}")
        results = ask(
            engine, {name: arguments_of(case / "engines" / script, program) for name, case in by_name.items()}
        )
        for name, got in results.items():
            check(by_name[name], got)
        print(f"ok: {found[0].name.removesuffix('.dist-info')} takes {script} of {len(results)} plans as it is meant")
        if (
            engine == "vllm" and pods
        ):  # KServe and Helm must pass the same arguments, with the package at the path where the pod mounts it
            mounted = {
                f"{name} {i}": [a.replace("/mnt/package", str(by_name[name])) for a in arguments]
                for name, both in pods.items()
                if not variant(by_name[name])
                for i, arguments in enumerate(both)
            }
            for name, got in ask(engine, mounted).items():
                check(by_name[name.split()[0]], got)
            print("ok: and what KServe and Helm hand to it")
    # The engines' parsers must refuse these wrong arguments, which shows that the checks above can fail.
    wrong = {
        "schedule": [
            "serve",
            str(cases[0] / "target"),
            "--speculative-config",
            json.dumps(
                {
                    "method": "draft_model",
                    "model": str(cases[0] / "draft"),
                    "num_speculative_tokens": 2,
                    "rejection_sample_method": "no such rule",
                }
            ),
        ]
    }
    refused = ask("vllm", wrong)["schedule"].get("error", "")
    expect("rejection_sample_method" in refused, f"vLLM's parser refuses a rule that it does not know: {refused}")
    wrong = {
        "block": [
            *arguments_of(by_name["standalone-block"] / "engines/sglang.sh", "python"),
            "--speculative-use-block-verification",
        ]
    }
    refused = ask("sglang", wrong)["block"].get("error", "")
    expect(
        "--speculative-use-block-verification only supports" in refused,
        f"SGLang's resolution refuses block verification with STANDALONE: {refused}",
    )
    print("ok: both refuse what they do not know")


if __name__ == "__main__":
    child({"vllm": parse_vllm, "sglang": parse_sglang}) if sys.argv[1] == "--child" else main()
