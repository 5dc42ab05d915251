// `specdec export` writes a model as one GGUF file, which llama.cpp loads.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "base/clock.h"
#include "base/file.h"
#include "base/model_directory.h"
#include "base/schema/result_head.h"
#include "cli/command.h"
#include "cli/log.h"
#include "cli/results.h"
#include "deploy/package/export_gguf.h"

namespace specdec::cli {

namespace {

struct ExportFlags {
  std::string model, gguf, type = "auto", name;
  bool draft = false;
};

struct ExportResult {
  ResultHead head;
  std::string path;
  deploy::GgufResult file;
  Json inputs = Json::object();
};
void visit_fields(Fields& f, ExportResult& r) {
  f.type("ExportResult", "A model as a GGUF file.");
  visit_head(f, r.head, "export", {"exported"});
  f.json("inputs", r.inputs);
  f("path", r.path);
  f("architecture", r.file.architecture);
  f("type", r.file.type);
  f("tensors", r.file.tensors, kAnyCount);
  f("bytes", r.file.bytes, kAnyCount);
  f("warnings", r.file.warnings);
}

int run_export(const Global& global, const ExportFlags& flags) {
  std::error_code ec;
  if (fs::exists(fs::symlink_status(flags.gguf, ec)))
    throw Error(ErrorKind::kUsage,
                "--gguf " + flags.gguf + ": exists, and is not replaced: give the name of a new file");
  const SystemClock clock;
  const double start = clock.seconds();
  ExportResult result;
  result.head.started = format_utc(clock.unix_seconds());
  const ResolvedModel model = resolve_model(flags.model);
  if (flags.draft && model.draft.empty())
    throw Error(ErrorKind::kUsage, "--packaged-draft: " + flags.model + " is no package; name the draft as MODEL");
  result.file = deploy::export_gguf(
      {.model = flags.draft ? model.draft : model.directory, .out = flags.gguf, .type = flags.type, .name = flags.name},
      make_progress(global));
  if (model.verified) model.verified->require_unchanged();
  for (const std::string& warning : result.file.warnings) log(LogLevel::kWarn, warning);
  result.head.verdict = "exported";
  result.head.seconds = clock.seconds() - start;
  result.path = flags.gguf;
  result.inputs = {{"model", flags.model}};
  if (global.json)
    std::printf("%s\n", canonical_json(json_of(result)).c_str());
  else
    std::printf("%s: %s, %s, %llu tensors, %.1f MB\n", flags.gguf.c_str(), result.file.architecture.c_str(),
                result.file.type.c_str(), static_cast<unsigned long long>(result.file.tensors),
                static_cast<double>(result.file.bytes) / 1e6);
  return 0;
}

}  // namespace

void add_export(Cli& cli) {
  auto flags = std::make_shared<ExportFlags>();
  CLI::App* sub = cli.app.add_subcommand(
      "export", "Writes a model as one GGUF file with tokenizer and chat template, which llama.cpp loads");
  sub->add_option("model", flags->model, "MODEL: local directory, org/name[@revision], or package (its target)")
      ->type_name("MODEL")
      ->required();
  sub->add_option("--gguf", flags->gguf, "File to write; it must not exist")->type_name("FILE")->required();
  sub->add_option(
         "--type", flags->type,
         "How matrices are stored: auto (the checkpoint's dtype), f32, f16, bf16, q8_0 or q4_0; vectors are f32")
      ->check(CLI::IsMember(deploy::known_gguf_types()))
      ->capture_default_str();
  sub->add_option("--name", flags->name, "general.name in the file; default: the model's name")->type_name("NAME");
  sub->add_flag("--packaged-draft", flags->draft, "Of a package, write its draft");
  sub->footer(
      "Examples:\n"
      "  specdec export --gguf target.gguf models/target\n"
      "  specdec export --gguf draft.gguf --type q8_0 run/draft\n"
      "  specdec export --gguf draft.gguf --packaged-draft store:production\n"
      "Exit codes: 0 written, 7 llama.cpp would run another model or make other tokens (the message says which), 74 "
      "disk "
      "full.");
  sub->callback([&cli, flags] { cli.selected = [&cli, flags] { return run_export(cli.global, *flags); }; });
}

void describe_export_result(Results& results) { results.add<ExportResult>({.commands = {"export"}}); }

}  // namespace specdec::cli
