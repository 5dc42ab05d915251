// What the files of `specdec package` share: flags, the result object, and the commands of the store.
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
  std::vector<std::string> engines, quantise,
      reports;  // of create: the draft's report first, then those of its variants
  bool allow_failed = false, reference_target = false, dry_run = false, make_public = false, understood = false;
  int keep = 3;
};
using PackageCommand = int (*)(const Global&, const PackageFlags&);

// One object on stdout, with what every result carries.
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

// --key and --passphrase-file, and who signs by them: nobody without the first.
void add_key_flags(CLI::App& app, PackageFlags& flags, const std::string& what);
deploy::ChannelSigner channel_signer(const PackageFlags& flags);
// push and pull.
void add_transfer_commands(CLI::App& app, PackageFlags& flags, const std::function<void(PackageCommand)>& select);
// list, promote, rollback, gc, pin, unpin below `app`; `select` names the one that was chosen.
void add_store_commands(CLI::App& app, PackageFlags& flags, const std::function<void(PackageCommand)>& select);

}  // namespace specdec::cli
