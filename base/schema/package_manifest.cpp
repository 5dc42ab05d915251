#include "base/schema/package_manifest.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include "base/file.h"
#include "base/file_lock.h"
#include "base/minisign.h"
#include "base/sha256.h"
#include "base/shell.h"

namespace specdec {

namespace {

constexpr ErrorKind kManifest = ErrorKind::kData;
constexpr size_t kMaxFiles = 1 << 16;
const std::string kDigestPrefix = "sha256-";

// Accepts relative paths with '/' between plain names, so that no path leads out of the package.
bool is_safe_path(const std::string& path) {
  if (path.empty() || path.size() > 1024 || path.back() == '/') return false;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == ".." || part.find('\\') != std::string::npos) return false;
    if (std::any_of(part.begin(), part.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; })) return false;
    begin = end + 1;
  }
  return true;
}

// Returns the relative paths of all files below `package` except the manifest and its signature. Refuses links and
// special files, and never follows them.
std::set<std::string> files_below(const fs::path& package) {
  std::set<std::string> found;
  std::error_code ec;
  for (fs::recursive_directory_iterator it(package, ec), end; !ec && it != end; it.increment(ec)) {
    const std::string path = it->path().lexically_relative(package).generic_string();
    const fs::file_type type = it->symlink_status().type();
    if (type == fs::file_type::directory) continue;
    if (type != fs::file_type::regular)
      throw Error(kManifest, package.string() + ": damaged package: " + path + " is a link or a special file");
    if (path != "manifest.json" && path != kSignatureFile) found.insert(path);
  }
  if (ec) throw Error(ErrorKind::kIo, package.string() + ": cannot list: " + ec.message());
  return found;
}

bool is_store(const fs::path& path) { return fs::is_directory(path / "packages"); }

fs::path find_by_digest(const fs::path& store, const std::string& name) {
  if (name.size() < kDigestPrefix.size() + 8)
    throw Error(ErrorKind::kUsage, name + ": expected at least 8 digits of a package digest");
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(store / "packages"))
    if (entry.path().filename().string().rfind(name, 0) == 0) found.push_back(entry.path());
  if (found.size() != 1)
    throw Error(kManifest, store.string() + ": " + (found.empty() ? "no package " : "more than one package ") + name);
  return found[0];
}

fs::path channel_package(const fs::path& store, const std::string& channel, ChannelRecord& record) {
  for (std::string last;;) {
    record = read_channel_record(store, channel);
    const std::string& digest = record.digest;
    if (digest.empty())
      throw Error(kManifest, store.string() + ": no channel '" + channel + "' (see specdec package list --store " +
                                 store.string() + ")");
    require_trusted_channel(store, channel, record);
    const fs::path package = store / "packages" / (kDigestPrefix + digest);
    if (fs::is_directory(package)) return package;
    if (digest == last)
      throw Error(kManifest, package.string() + ": missing, although the channel '" + channel + "' names it");
    last = digest;  // the channel moved, and the old package was removed, between the two reads
  }
}

// Returns the directory of the package that `argument` names, or an empty path if it names no package. If `argument`
// names a channel, sets `channel` to its record.
fs::path package_directory(const std::string& argument, ChannelRecord& channel) {
  const fs::path path(argument);
  // A model directory may have a manifest.json of its own, but it also has a config.json.
  if (fs::exists(path / "manifest.json") && !fs::exists(path / "config.json")) return path;
  // A directory named after a digest is a package even without a manifest; read_manifest then reports the damage.
  if (fs::is_directory(path) && path.filename().string().rfind(kDigestPrefix, 0) == 0) return path;
  if (fs::is_regular_file(path) && path.parent_path().filename() == "refs") {
    const fs::path refs = fs::absolute(path).parent_path();
    if (is_store(refs.parent_path())) return channel_package(refs.parent_path(), path.filename().string(), channel);
  }
  const size_t colon = argument.rfind(':');
  if (colon == std::string::npos || !is_store(argument.substr(0, colon))) return {};
  const std::string store = argument.substr(0, colon), name = argument.substr(colon + 1);
  return name.rfind(kDigestPrefix, 0) == 0 ? find_by_digest(store, name) : channel_package(store, name, channel);
}

// Returns the digest that the package must have: the one in the channel's record, or the one in the name of its
// directory; "" if neither names one. Without this check, a link in packages/ could replace the requested package by
// another.
std::string promised_digest(const fs::path& named, const ChannelRecord& channel) {
  if (!channel.digest.empty()) return channel.digest;
  const std::string name = (named.has_filename() ? named : named.parent_path()).filename().string();
  const std::string digits = name.rfind(kDigestPrefix, 0) == 0 ? name.substr(kDigestPrefix.size()) : "";
  return is_sha256_hex(digits) ? digits : "";
}

}  // namespace

void PackageManifest::validate(const std::string& where) const {
  const auto check = [&](bool ok, const std::string& text) {
    if (!ok) throw Error(kManifest, where + ": " + text);
  };
  bool has_target = false, has_draft = false;
  for (size_t i = 0; i < files.size(); ++i) {
    const PackagedFile& f = files[i];
    check(is_safe_path(f.path) && f.path != "manifest.json" && f.path != kSignatureFile,
          "files[" + std::to_string(i) + "]: path: expected a relative path without '..'");
    check(i == 0 || files[i - 1].path < f.path, "files[" + std::to_string(i) + "]: expected each path once, sorted");
    has_target |= f.path == "target/config.json";
    has_draft |= f.path == "draft/config.json";
  }
  check(has_draft, "files: draft/config.json: missing");
  for (const std::string* text : {&created, &draft_kind, &tool_version, &target_reference})
    check(one_line(*text) == *text, "a control character in " + one_line(*text));
  check(has_target != !target_reference.empty(), "expected either target/config.json or a target reference");
  check(tokenizer_digest == target.tokenizer, "tokenizer_digest: expected that of the target");
  check(!draft_kind.empty(), "draft: kind: missing");
  const ValidationReport parsed = validation_report_from_json(report, where + ": report");
  check(parsed.target == target && parsed.draft == draft, "report: was made for another pair of models");
  check(parsed.verdict == Verdict::kPass || allowed_failed,
        std::string("report: verdict ") + to_string(parsed.verdict) + " without allowed_failed");
  for (size_t i = 0; i < variants.size(); ++i) {
    const DraftVariant& v = variants[i];
    const std::string at = "variants[" + std::to_string(i) + "]: ";
    check(!v.format.empty() && v.format.size() <= 32 &&
              v.format.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789") == std::string::npos,
          at + "format: expected at most 32 of [a-z0-9]");
    check(i == 0 || variants[i - 1].format < v.format, at + "expected each format once, sorted");
    check(std::any_of(files.begin(), files.end(),
                      [&](const PackagedFile& f) { return f.path == v.directory() + "/config.json"; }),
          "files: " + v.directory() + "/config.json: missing");
    if (v.report.is_null()) continue;
    const ValidationReport own = validation_report_from_json(v.report, where + ": " + at + "report");
    check(own.target == target && own.draft == v.fingerprint, at + "report: was made for another pair of models");
    check(own.verdict == Verdict::kPass || allowed_failed,
          at + "report: verdict " + to_string(own.verdict) + " without allowed_failed");
  }
}

void visit_fields(Fields& f, PackagedFile& file) {
  f("path", file.path);
  f("size", file.size, {0, INT64_MAX});
  f.digest("sha256", file.sha256);
}

void visit_fields(Fields& f, DraftVariant& v) {
  f("format", v.format);
  f("fingerprint", v.fingerprint);
  f("relative_error", v.relative_error, {0, 1e9});
  f.json(defaulted("report"), v.report, Json::object());
}

void visit_fields(Fields& f, PackageManifest& m) {
  f.schema("package", PackageManifest::kVersion);
  f("files", m.files, {kMaxFiles, true});
  f.group("target", [&](Fields& target) {
    target("fingerprint", m.target);
    target(defaulted("reference"), m.target_reference);
  });
  f.group("draft", [&](Fields& draft) {
    draft("fingerprint", m.draft);
    draft("kind", m.draft_kind);
  });
  f.digest("tokenizer_digest", m.tokenizer_digest);
  f.json("report", m.report);
  f(defaulted("variants"), m.variants, {16, true});
  f(defaulted("allowed_failed"), m.allowed_failed);
  // Packages of earlier versions do not state their visibility.
  f.one_of(defaulted("visibility"), m.is_public, {{true, "public"}, {false, "private"}});
  f.json("provenance", m.provenance);
  f.digest(defaulted("parent"), m.parent, true);
  f("created", m.created);
  f("tool_version", m.tool_version);
}

Json to_json(const PackageManifest& manifest) { return json_of(manifest); }

PackageManifest package_manifest_from_json(const Json& object, const std::string& where) {
  PackageManifest m = read_fields<PackageManifest>(object, where, kManifest);
  m.validate(where);
  return m;
}

namespace {
std::string manifest_text(const fs::path& package) {
  const fs::path file = package / "manifest.json";
  if (fs::is_symlink(fs::symlink_status(file)))
    throw Error(kManifest, file.string() + ": damaged package: a link, expected a regular file");
  return read_file(file);
}
PackageManifest parse_manifest(const std::string& text, const std::string& where) {
  return package_manifest_from_json(parse_json(text, where), where);
}
}  // namespace

PackageManifest read_manifest(const std::filesystem::path& package) {
  return parse_manifest(manifest_text(package), (package / "manifest.json").string());
}

std::string package_digest(const std::filesystem::path& package) { return sha256_file(package / "manifest.json"); }

std::shared_ptr<const VerifiedFiles> verify_files(const std::filesystem::path& package, const PackageManifest& manifest,
                                                  bool verify_digests, bool target_too) {
  const auto refuse = [&](const std::string& text) {
    throw Error(kManifest, package.string() + ": damaged package: " + text);
  };
  const auto verified = std::make_shared<VerifiedFiles>(package);
  // A directory named by a digest must hold the manifest with that digest.
  const std::string name = (package.has_filename() ? package : package.parent_path()).filename().string();
  verified->begin("manifest.json");
  if (name.rfind(kDigestPrefix, 0) == 0 && is_sha256_hex(name.substr(kDigestPrefix.size())) &&
      kDigestPrefix + package_digest(package) != name)
    refuse("manifest.json was changed (its digest is not the directory's name)");
  verified->end();
  std::set<std::string> found = files_below(package);
  const auto passed_over = [target_too](const std::string& path) { return !target_too && path.starts_with("target/"); };
  std::erase_if(found, passed_over);
  for (const PackagedFile& f : manifest.files) {
    if (passed_over(f.path)) continue;
    if (found.erase(f.path) == 0) refuse(f.path + " is missing");
    const uint64_t size = InputFile(package / f.path, kManifest).size();
    if (size != f.size)
      refuse(f.path + " has " + std::to_string(size) + " bytes, the manifest says " + std::to_string(f.size));
  }
  if (!found.empty()) refuse(*found.begin() + " is not in the manifest");
  if (!verify_digests) return verified;
  for (const PackagedFile& f : manifest.files) {
    if (passed_over(f.path)) continue;
    verified->begin(f.path);
    if (sha256_file(package / f.path) != f.sha256) refuse(f.path + " was changed (its digest is not the manifest's)");
    verified->end();
  }
  return verified;
}

std::shared_ptr<const VerifiedFiles> verify_small_files(const ResolvedPackage& package, uint64_t max_bytes) {
  const auto verified = std::make_shared<VerifiedFiles>(package.root);
  for (const PackagedFile& f : package.manifest.files) {
    if (f.size > max_bytes) continue;
    verified->begin(f.path);
    if (sha256_file(package.root / f.path) != f.sha256)
      throw Error(kManifest, package.root.string() + ": damaged package: " + f.path +
                                 " was changed (its digest is not the manifest's)");
    verified->end();
  }
  return verified;
}

void require_trusted(const ResolvedPackage& package) {
  for (const fs::path& store : package.stores) {
    const fs::path keys = trusted_keys(store), signature = package.root / kSignatureFile;
    if (keys.empty()) continue;
    if (!fs::exists(signature))
      throw Error(kManifest,
                  package.root.string() + ": not signed, and " + keys.string() + " demands it: specdec package sign");
    verify_minisign(package.manifest_text, read_file(signature, 1u << 16), read_minisign_keys(keys),
                    signature.string());
  }
}

void require_channel_name(const std::string& channel) {
  const char* kAllowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  if (channel.empty() || channel.size() > 64 || channel[0] == '.' || channel[0] == '-' ||
      channel.find_first_not_of(kAllowed) != std::string::npos || channel.rfind(kDigestPrefix, 0) == 0 ||
      channel.ends_with(".log") || channel.ends_with(".partial"))
    throw Error(ErrorKind::kUsage,
                "channel '" + channel.substr(0, 80) +
                    "': expected at most 64 of [A-Za-z0-9._-], not starting with '.', '-' or sha256-, "
                    "not ending in .log or .partial");
}

std::string read_channel(const std::filesystem::path& store, const std::string& channel) {
  return read_channel_record(store, channel).digest;
}

std::optional<ResolvedPackage> locate_package(const std::string& argument) {
  constexpr int kMaxTries = 500;  // one try every 10 ms; a removal needs the lock only briefly
  Place place;
  ResolvedPackage package;
  fs::path& root = place.real;
  std::shared_ptr<const DirectoryLock> hold;
  fs::path named;
  for (int tries = 0;; ++tries) {
    named = package_directory(argument, package.channel);
    if (named.empty()) return std::nullopt;
    // No link is followed after this line, so the files that are checked are the files that are opened.
    place = follow_links(named);
    hold = std::make_shared<const DirectoryLock>(root, DirectoryLock::Kind::kShared);
    if (hold->state() == DirectoryLock::State::kHeld || hold->state() == DirectoryLock::State::kUnsupported) break;
    if (tries == kMaxTries)
      throw Error(ErrorKind::kNetwork,
                  root.string() + ": locked by another process, which may be removing it: try again");
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  package.root = root;
  package.stores = place.stores;
  package.hold = std::move(hold);
  package.manifest_text = manifest_text(root);
  package.manifest = parse_manifest(package.manifest_text, (root / "manifest.json").string());
  package.digest = sha256_hex(package.manifest_text);
  if (const std::string promised = promised_digest(named, package.channel);
      !promised.empty() && promised != package.digest)
    throw Error(
        kManifest,
        named.string() +
            ": damaged package: manifest.json was changed, or a link leads to another package (it has the digest " +
            package.digest.substr(0, 12) + ", expected " + promised.substr(0, 12) + ")");
  package.target =
      package.manifest.target_reference.empty() ? root / "target" : fs::path(package.manifest.target_reference);
  package.draft = root / "draft";
  return package;
}

std::optional<ResolvedPackage> resolve_package(const std::string& argument, bool verify_digests) {
  auto package = locate_package(argument);
  if (package) {
    require_trusted(*package);
    verify_files(package->root, package->manifest, verify_digests);
  }
  return package;
}

}  // namespace specdec
