// `specdec fetch` downloads models into the Hugging Face cache before they are needed. This file also defines how every
// command resolves hub names.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <memory>

#include "base/clock.h"
#include "base/model_directory.h"
#include "base/schema/result_head.h"
#include "cli/command.h"
#include "cli/results.h"
#include "net/hub.h"

namespace specdec::cli {

// The environment is read whenever a new hub name is resolved. A name that was resolved before gives the same commit
// again, even if the hub has changed.
void install_hub(const Global& global) {
  auto found = std::make_shared<std::map<std::string, HubSnapshot>>();
  set_hub_resolver([&global, found](const HubName& hub) {
    const auto known = found->find(hub.text());
    if (known != found->end()) return known->second;
    return found->emplace(hub.text(), net::fetch_model(hub, net::hub_options_from_environment(), make_progress(global)))
        .first->second;
  });
}

namespace {

struct FetchedModel {
  std::string model, directory, commit;
};
void visit_fields(Fields& f, FetchedModel& fetched) {
  f.type("FetchedModel", "A model in the cache.");
  f("model", fetched.model);
  f("directory", fetched.directory);
  f("commit", fetched.commit);
}

struct FetchResult {
  ResultHead head;
  std::vector<FetchedModel> models;
};
void visit_fields(Fields& f, FetchResult& r) {
  f.type("FetchResult", "Models that are in the cache now.");
  visit_head(f, r.head, "fetch", {"done"});
  f("models", r.models);
}

int run_fetch(const Global& global, const std::vector<std::string>& models) {
  const SystemClock clock;
  const double start = clock.seconds();
  FetchResult result;
  result.head.started = format_utc(clock.unix_seconds());
  for (const std::string& name : models) {
    const ResolvedModel model = resolve_model(name);
    result.models.push_back({name, model.directory.string(), model.hub_commit});
    if (!global.json) std::printf("%s\n", model.directory.c_str());
  }
  result.head.seconds = clock.seconds() - start;
  if (global.json) std::printf("%s\n", canonical_json(json_of(result)).c_str());
  return 0;
}

}  // namespace

void add_fetch(Cli& cli) {
  auto models = std::make_shared<std::vector<std::string>>();
  CLI::App* sub = cli.app.add_subcommand("fetch",
                                         "Downloads models from a Hugging Face hub, as every command does when it is "
                                         "given a hub name; prints their paths");
  sub->add_option("model", *models, "org/name[@revision]; may be repeated")->type_name("org/name")->required();
  sub->footer(
      "Examples:\n"
      "  specdec fetch org/name                                   # before the machine goes offline "
      "(HF_HUB_OFFLINE=1)\n"
      "  specdec --json fetch org/target@v1.2 org/draft           # commits and directories, for CI\n"
      "  HF_ENDPOINT=https://mirror.internal specdec fetch org/name\n"
      "Exit codes: 0 complete in the cache, 2 licence or token, 7 no such model or damaged bytes, 74 disk full, 75 hub "
      "down or a signal: run it again.");
  sub->callback([&cli, models] { cli.selected = [&cli, models] { return run_fetch(cli.global, *models); }; });
}

void describe_fetch_result(Results& results) { results.add<FetchResult>({.commands = {"fetch"}}); }

}  // namespace specdec::cli
