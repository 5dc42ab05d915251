// Shared by the files of `specdec package`: flags, the result object, and the commands of the store.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <string>

#include "base/clock.h"
#include "base/schema/result_head.h"
#include "cli/command.h"
#include "deploy/package/store.h"

namespace specdec::cli {

struct PackageFlags {
  std::string target, draft, report, store, name, channel, why, package, from,
      format = "text", key, passphrase_file, public_key, out, visibility = "private", gguf;
  // `reports` are the gate reports from which a package is created: first the draft's own report, then those of its
  // variants.
  std::vector<std::string> engines, quantise, reports;
  bool allow_failed = false, reference_target = false, dry_run = false, make_public = false, understood = false;
  int keep = 3;
};
using PackageCommand = int (*)(const Global&, const PackageFlags&);

// The fields that the results of all `specdec package` commands share, and the clock that fills them.
struct PackageResult {
  PackageResult() : start(clock.seconds()) { head.started = format_utc(clock.unix_seconds()); }
  int64_t now() const { return clock.unix_seconds(); }

  SystemClock clock;
  double start;
  ResultHead head;
  Json inputs = Json::object();
};
void visit_package_head(Fields& f, PackageResult& result, const char* action, const std::vector<const char*>& verdicts);
template <class T>
void print(T& result) {
  result.head.seconds = result.clock.seconds() - result.start;
  std::printf("%s\n", canonical_json(json_of(result)).c_str());
}

// add_key_flags() declares --key and --passphrase-file. channel_signer() returns a signer that uses this key, or,
// without --key, a signer whose signatures are empty.
void add_key_flags(CLI::App& app, PackageFlags& flags, const std::string& what);
deploy::ChannelSigner channel_signer(const PackageFlags& flags);
// Adds the commands push and pull to `app`; `select` receives the chosen command.
void add_transfer_commands(CLI::App& app, PackageFlags& flags, const std::function<void(PackageCommand)>& select);
// Adds the commands list, promote, rollback, gc, pin and unpin to `app`; `select` receives the chosen command.
void add_store_commands(CLI::App& app, PackageFlags& flags, const std::function<void(PackageCommand)>& select);

}  // namespace specdec::cli
