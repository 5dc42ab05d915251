// Shared by the files of `specdec package`: flags, the result object, and the commands of the store.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/json.h"
#include "cli/command.h"
#include "deploy/package/store.h"

namespace specdec::cli {

struct PackageFlags {
  std::string target, draft, report, store, name, channel, why, package, from, format = "text", key, passphrase_file,
                                                                               public_key, out, visibility = "private";
  // `reports` are the gate reports for creating a package: first the draft's own report, then its variants' reports.
  std::vector<std::string> engines, quantise, reports;
  bool allow_failed = false, reference_target = false, dry_run = false, make_public = false, understood = false;
  int keep = 3;
};
using PackageCommand = int (*)(const Global&, const PackageFlags&);

// Collects the JSON result of a command, with the fields that every result has. print() writes it to stdout.
class PackageResult {
 public:
  explicit PackageResult(const std::string& action);
  int64_t now() const { return clock_.unix_seconds(); }
  Json& operator[](const char* key) { return json_[key]; }
  void print();

 private:
  SystemClock clock_;
  double started_;
  Json json_;
};

// add_key_flags() declares --key and --passphrase-file. channel_signer() returns a signer with this key, or one that
// signs nothing if there is no --key.
void add_key_flags(CLI::App& app, PackageFlags& flags, const std::string& what);
deploy::ChannelSigner channel_signer(const PackageFlags& flags);
// Adds the commands push and pull to `app`; `select` receives the chosen command.
void add_transfer_commands(CLI::App& app, PackageFlags& flags, const std::function<void(PackageCommand)>& select);
// Adds the commands list, promote, rollback, gc, pin and unpin to `app`; `select` receives the chosen command.
void add_store_commands(CLI::App& app, PackageFlags& flags, const std::function<void(PackageCommand)>& select);

}  // namespace specdec::cli
