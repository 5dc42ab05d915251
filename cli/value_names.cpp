#include "cli/value_names.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>

#include "cli/init/init.h"
#include "data/formats/row_parser.h"
#include "deploy/package/launch.h"
#include "deploy/package/quantise.h"

namespace specdec::cli {

namespace {

std::string without_spaces(std::string text) {
  std::erase(text, ' ');
  return text;
}

constexpr char kTypes[] = "auto|fp32|bf16|fp16|int8", kSpec[] = "prune:N|model:MODEL|config:FILE",
               kPackage[] = "PACKAGE|STORE:CHANNEL";

struct ValueName {
  const char* of;  // a flag, or a command and its flag or positional argument
  const char* name;
};

// A flag has the same meaning in every command unless the command has a row of its own.
constexpr ValueName kNames[] = {
    {"--acceptance-log", "FILE"},
    {"--admin", "unix:PATH|URL"},
    {"--admin-key-file", "FILE"},
    {"--admin-socket", "PATH"},
    {"--against", "MODEL|STORE:CHANNEL"},
    {"--alert", "FILE"},
    {"--alertmanager", "URL|@FILE"},
    {"--allow-origin", "ORIGIN"},
    {"--allowed-host", "NAME"},
    {"--api-key-file", "FILE"},
    {"--bad-word", "TEXT"},
    {"--bake", "DURATION"},
    {"--baseline", "FILE"},
    {"--batches", "N"},
    {"--canary", "DIR"},
    {"--canary-time", "DURATION"},
    {"--candidate", "STORE:CHANNEL"},
    {"--channel", "NAME"},
    {"--compare", "prune:N|model:MODEL|config:FILE|eagle3,..."},
    {"--config", "FILE"},
    {"--contexts", "target|data"},
    {"--cooldown", "DURATION"},
    {"--costs", "FILE"},
    {"--data", "DIR"},
    {"--device", "auto|cpu|cuda|cuda:I"},
    {"--disable", "COMMAND"},
    {"--domain", "NAME"},
    {"--domain-field", "FIELD"},
    {"--domain-rules", "FILE"},
    {"--draft", "MODEL"},
    {"--draft-dtype", kTypes},
    {"--dtype", kTypes},
    {"--enable", "COMMAND"},
    {"--false-alarm-every", "DURATION"},
    {"--from", "DIGEST"},
    {"--holdout-rule", "auto|time|hash|first"},
    {"--holdout-src", "FILE"},
    {"--horizon", "DURATION"},
    {"--host", "ADDRESS"},
    {"--html", "FILE"},
    {"--cuda-image", "IMAGE"},
    {"--image", "IMAGE"},
    {"--job", "FILE"},
    {"--job-image", "IMAGE"},
    {"--json-schema", "FILE"},
    {"--k", "N|auto"},
    {"--key", "FILE"},
    {"--ks", "N|auto"},
    {"--logit-bias", "ID=VALUE"},
    {"--logs", "FILE|DIR"},
    {"--loop", "FILE"},
    {"--loss", "ce|kl|rkl|jsd|jsd:BETA|tv|nla|lk_hybrid|SUM"},
    {"--map", "KEY=FIELD,..."},
    {"--messages", "FILE"},
    {"--mix", "DOMAIN=SHARE,..."},
    {"--model", "NAME"},
    {"--name", "NAME"},
    {"--on-drift", "COMMAND"},
    {"--order", "given|shuffle"},
    {"--out", "DIR"},
    {"--package", kPackage},
    {"--parts", "acceptance|rollout|speed|lossless,..."},
    {"--passphrase-file", "FILE"},
    {"--predict", "c=C,v=V[,batch=B]"},
    {"--probe", "COMMAND"},
    {"--prom", "FILE"},
    {"--prompt", "TEXT"},
    {"--public-key", "FILE"},
    {"--record", "DIR"},
    {"--rejects", "DIR"},
    {"--redistil", "COMMAND"},
    {"--regex", "REGEX"},
    {"--report", "FILE"},
    {"--salt", "FILE"},
    {"--segment-floor", "NAME=FLOOR"},
    {"--separator", "TEXT"},
    {"--served-model-name", "NAME,..."},
    {"--source", "FILE|DIR|URL"},
    {"--split", "holdout|train|all"},
    {"--state", "FILE"},
    {"--store", "STORE"},
    {"--target", "MODEL"},
    {"--target-files", "DIR"},
    {"--target-key-file", "FILE"},
    {"--target-model", "NAME"},
    {"--teacher", "target|hidden:DIR|labels:DIR|URL"},
    {"--tenant-field", "FIELD"},
    {"--time-limit", "DURATION"},
    {"--tls-cert", "FILE"},
    {"--tls-key", "FILE"},
    {"--tree", "N,N,..."},
    {"--verify", "token|block|target|coupled"},
    {"--webhook", "URL|@FILE"},
    {"--webhook-secret-file", "FILE"},
    {"--why", "TEXT"},
    {"--work", "DIR"},
    {"--written-by", "NAME"},
    {"data audit dir", "DIR"},
    {"data ingest sources", "FILE|DIR"},
    {"data label --target", "MODEL|URL"},
    {"data label dir", "DIR"},
    {"data regenerate --target", "MODEL|URL"},
    {"data regenerate dir", "DIR"},
    {"data stats dir", "DIR"},
    {"distill --draft", kSpec},
    {"fetch model", "org/name"},
    {"help command", kCommandName},
    {"init --draft", kSpec},
    {"init directory", "DIR"},
    {"loop run file", "FILE"},
    {"manual command", kCommandName},
    {"monitor baseline --out", "FILE"},
    {"monitor check --target", "MODEL|URL"},
    {"monitor watch --target", "MODEL|URL"},
    {"package lint package", kPackage},
    {"package pin package", kPackage},
    {"package promote package", kPackage},
    {"package pull package", kPackage},
    {"package push package", kPackage},
    {"package sign package", kPackage},
    {"package unpin package", kPackage},
    {"package verify package", kPackage},
    {"serve package", kPackage},
};

const std::map<std::string, std::string>& table() {
  static const std::map<std::string, std::string> kTable = [] {
    // Values that other modules know.
    std::map<std::string, std::string> table = {
        {"--engines", CLI::detail::join(deploy::known_engines(), "|")},
        {"--only", CLI::detail::join(init_parts(), "|")},
        {"--quantise", CLI::detail::join(deploy::known_quantisations(), "|")},
        {"data ingest --format", without_spaces(data::format_names())},
    };
    for (const ValueName& row : kNames) table.emplace(row.of, row.name);
    return table;
  }();
  return kTable;
}

const std::string* find_name(const std::string& words, const std::string& name) {
  const auto own = table().find(words + " " + name), shared = table().find(name);
  return own != table().end() ? &own->second : shared != table().end() ? &shared->second : nullptr;
}

std::string first_name(const CLI::Option& option) {
  return option.get_lnames().empty() ? option.get_name(true) : "--" + option.get_lnames().front();
}

void name_values_below(CLI::App& app, const std::string& words) {
  for (CLI::Option* option : app.get_options()) {
    const std::string* name = find_name(words, first_name(*option));
    if (name && option->get_items_expected_max() > 0 && option->get_type_name() == "TEXT") option->type_name(*name);
  }
  for (CLI::App* sub : app.get_subcommands({}))
    name_values_below(*sub, words + (words.empty() ? "" : " ") + sub->get_name());
}

}  // namespace

void name_values(CLI::App& app) { name_values_below(app, ""); }

bool has_value_name(const std::string& words, const std::string& name) { return find_name(words, name) != nullptr; }

bool is_literal(const std::string& alternative) {
  return !alternative.empty() && std::all_of(alternative.begin(), alternative.end(), [](unsigned char c) {
    return std::islower(c) || std::isdigit(c) || c == '-' || c == '_' || c == '.';
  });
}

Offer offer_of(const std::string& placeholder) {
  static const std::map<std::string, Offer> kOffers = {{"FILE", Offer::kFiles},
                                                       {"PATH", Offer::kFiles},
                                                       {"DIR", Offer::kDirectories},
                                                       {"MODEL", Offer::kDirectories},
                                                       {"PACKAGE", Offer::kDirectories},
                                                       {"STORE", Offer::kDirectories},
                                                       {"STORE:CHANNEL", Offer::kDirectories}};
  const auto found = kOffers.find(placeholder);
  return found == kOffers.end() ? Offer::kNone : found->second;
}

}  // namespace specdec::cli
