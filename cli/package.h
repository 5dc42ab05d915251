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
  // `reports` are those for create: the draft's first, then those of its variants.
  std::vector<std::string> engines, quantise, reports;
  bool allow_failed = false, reference_target = false, dry_run = false, make_public = false, understood = false;
  int keep = 3;
};
using PackageCommand = int (*)(const Global&, const PackageFlags&);

// The JSON result of a command on stdout, with the fields that every result has.
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

// Declares --key and --passphrase-file. channel_signer() returns their signer, which signs nothing without --key.
void add_key_flags(CLI::App& app, PackageFlags& flags, const std::string& what);
deploy::ChannelSigner channel_signer(const PackageFlags& flags);
// Adds push and pull.
void add_transfer_commands(CLI::App& app, PackageFlags& flags, const std::function<void(PackageCommand)>& select);
// Adds list, promote, rollback, gc, pin, unpin below `app`; `select` receives the chosen command.
void add_store_commands(CLI::App& app, PackageFlags& flags, const std::function<void(PackageCommand)>& select);

}  // namespace specdec::cli
