#include "deploy/stores/hub_store.h"

#include <algorithm>
#include <set>
#include <span>

#include "base/error.h"
#include "base/file.h"
#include "base/hub_cache.h"
#include "base/schema/package_manifest.h"
#include "base/sha256.h"
#include "deploy/package/transfer.h"
#include "net/hub_upload.h"

namespace specdec::deploy {

namespace {

using Access = net::HubRepository::Access;

// Limits for files whose bytes are sent in the commit itself instead of by LFS: at most kMaxRegular bytes each and
// kMaxRegularSum together.
constexpr uint64_t kMaxRegular = 1u << 20, kMaxRegularSum = 32u << 20, kMaxManifest = 64u << 20;
const std::string kTagPrefix = "sha256-", kMain = "main", kManifestFile = "manifest.json";
// Files that belong to the repository, not to the package: .gitattributes lists the files in LFS, and README.md is the
// front page.
const std::set<std::string> kKept = {".gitattributes", "README.md"};

HubName store_name(const std::string& store) {
  const auto hub = store.find('@') == std::string::npos ? parse_hub_name(store) : std::nullopt;
  if (!hub)
    throw Error(ErrorKind::kUsage, store.substr(0, 200) + ": expected hf://org/name; --channel names the branch");
  return *hub;
}

// Checks a channel's name, which becomes the name of a git branch and so must also obey git's rules.
void require_branch_name(const std::string& channel) {
  require_channel_name(channel);
  if (channel.find("..") != std::string::npos || channel.front() == '-' || channel.back() == '.' ||
      channel.ends_with(".lock") || channel == "HEAD" || is_commit(channel))
    throw Error(ErrorKind::kUsage, "channel '" + channel +
                                       "': at a hub a channel is a git branch: expected no '..', no leading '-', no "
                                       "trailing '.' or '.lock', and neither HEAD nor a commit");
}

class HubPackage : public PackageSource, public PackageSink {
 public:
  HubPackage(const std::string& store, Access access)
      : hub_(store_name(store)), options_(net::hub_options_from_environment()), repository_(hub_, options_, access) {}
  explicit HubPackage(const PackageTransfer& t) : HubPackage(t.store, Access::kWrite) {
    make_public_ = t.make_public;
    if (!t.channel.empty()) branch_ = t.channel;
    why_ = t.why;
    require_branch_name(branch_);
  }

  std::string name() const override { return repository_.name() + (commit_.empty() ? "" : "@" + commit_); }
  const std::string& commit() const { return commit_; }

  // ---- functions for pulling; select() resolves the channel or digest to one commit, which is then read ----
  void select(const std::string& channel_or_digest) {
    const net::HubRefs refs = repository_.refs();
    const bool tag = channel_or_digest.starts_with(kTagPrefix);
    const auto& names = tag ? refs.tags : refs.branches;
    const auto found = names.find(channel_or_digest);
    if (found == names.end())
      throw Error(ErrorKind::kData, repository_.name() + ": no " + (tag ? "package " : "channel '") +
                                        channel_or_digest + (tag ? "" : "'"));
    commit_ = found->second;
  }
  std::string text(const std::string& path, size_t max_bytes) override {
    return repository_.text(commit_, path, max_bytes);
  }
  void read(const std::string& path, uint64_t begin, const std::function<void(std::string_view)>& take) override {
    repository_.read_from(commit_, path, begin, take);
  }

  // ---- pushing ----
  bool is_public() override {
    is_private_ = repository_.is_private();
    if (make_public_ && is_private_ == true)
      throw Error(ErrorKind::kUsage,
                  repository_.name() + ": exists and is private: --public only makes new repositories, change it at " +
                      settings());
    return is_private_ ? !*is_private_ : make_public_;
  }

  bool begin(const ResolvedPackage& package, const std::vector<PackagedFile>& files) override {
    root_ = package.root;
    files_ = files;
    digest_ = package.digest;
    if (!is_private_) make_repository();
    refs_ = repository_.refs();
    look_at_tag();
    const auto head = refs_.branches.find(branch_);
    has_branch_ = head != refs_.branches.end();
    if (!has_branch_ && tag_ == Tag::kWhole) {  // the package exists there already and only gets a new channel
      commit_ = refs_.tags.at(tag_name());
      return true;
    }
    if (has_branch_) {
      const std::string text = repository_.text(head->second, kManifestFile, kMaxManifest);
      before_ = text.empty() ? "" : sha256_hex(text);
      work_ = branch_;
      parent_ = head->second;
    } else {
      start_staging();
    }
    parent_tree_ = repository_.tree(parent_);
    if (is_whole(parent_tree_)) {
      commit_ = parent_;
      return true;
    }
    choose_large();
    return false;
  }

  bool has(const PackagedFile& file) override {
    upload_.reset();
    if (!large_.count(file.path)) return false;
    upload_ = repository_.ask_upload(work_, file.sha256, file.size);
    if (!upload_) change_.large[file.path] = {file.size, file.sha256};
    return !upload_;
  }

  void put(const PackagedFile& file, const fs::path& from, const std::function<void(uint64_t)>& progress) override {
    if (upload_) {
      repository_.upload(*upload_, file.sha256, from, progress);
      change_.large[file.path] = {file.size, file.sha256};
      return;
    }
    std::string bytes = read_file(from, kMaxRegular);
    if (sha256_hex(bytes) != file.sha256)
      throw Error(ErrorKind::kData, from.string() + ": was changed while it was pushed");
    change_.files[file.path] = std::move(bytes);
    progress(file.size);
  }

  bool put_new(const PackagedFile& manifest, const fs::path& from) override {
    if (!has(manifest)) put(manifest, from, [](uint64_t) {});
    for (const auto& [path, file] : parent_tree_)
      if (!change_.files.count(path) && !change_.large.count(path) && !kKept.count(path))
        change_.removed.push_back(path);
    const auto made =
        repository_.commit(work_, parent_, branch_ + ": package " + tag_name().substr(0, 19), why_, change_);
    if (made) {
      commit_ = *made;
    } else {  // the commit may have succeeded although its reply was lost, or another publisher was faster
      refs_ = repository_.refs();
      const auto head = refs_.branches.find(work_);
      if (head == refs_.branches.end() || head->second == parent_ || !is_whole(repository_.tree(head->second)))
        refuse_race("its branch " + work_ + " moved meanwhile");
      commit_ = head->second;
    }
    return tag_ == Tag::kNone;
  }

  // Publishes the commit: creates the tag with the digest, and the branch if the channel is new.
  ChannelChange settle() {
    if (tag_ == Tag::kOther) repository_.remove_tag(tag_name());
    if (tag_ != Tag::kWhole && !repository_.create_tag(tag_name(), commit_) &&
        repository_.refs().tags[tag_name()] != commit_)
      refuse_race("the tag " + tag_name() + " was made meanwhile");
    if (!has_branch_ && !repository_.create_branch(branch_, commit_) && repository_.refs().branches[branch_] != commit_)
      refuse_race("the branch " + branch_ + " was made meanwhile");
    if (work_ == staging() || refs_.branches.count(staging())) repository_.remove_branch(staging());
    return {branch_, before_, digest_, before_ != digest_};
  }

 private:
  // State of the package's tag. kOther: the tag points to a commit that is incomplete, or that holds this package with
  // another signature.
  enum class Tag { kNone, kOther, kWhole };

  std::string tag_name() const { return kTagPrefix + digest_; }
  // Returns the branch in which the first commit of a new channel is made, so that the channel's name appears only
  // together with its package. No channel can have this name.
  std::string staging() const { return tag_name() + ".partial"; }
  std::string settings() const { return options_.endpoint + "/" + hub_.repository() + "/settings"; }
  [[noreturn]] void refuse_race(const std::string& what) const {
    throw Error(ErrorKind::kNetwork,
                repository_.name() + ": another publisher changed it: " + what + ": try again, what was sent is kept");
  }

  void make_repository() {
    repository_.create(!make_public_);
    is_private_ = repository_.is_private();
    if (!is_private_)
      throw Error(ErrorKind::kNetwork, repository_.name() + ": was created but is not visible yet: try again");
    if (!*is_private_ && !make_public_)
      throw Error(
          ErrorKind::kUsage,
          repository_.name() + ": was to be made private and is public: nothing was sent, change it at " + settings());
  }

  void look_at_tag() {
    const auto found = refs_.tags.find(tag_name());
    if (found == refs_.tags.end()) return;
    if (sha256_hex(repository_.text(found->second, kManifestFile, kMaxManifest)) != digest_)
      throw Error(ErrorKind::kData,
                  repository_.name() + ": the tag " + tag_name() +
                      " is on another commit than that package's: someone moved it; remove it there and push again");
    tag_ = is_whole(repository_.tree(found->second)) ? Tag::kWhole : Tag::kOther;
  }

  void start_staging() {
    work_ = staging();
    if (!refs_.branches.count(work_)) {
      const auto main = refs_.branches.find(kMain);
      if (main == refs_.branches.end())
        throw Error(ErrorKind::kData,
                    repository_.name() + ": has no branch " + kMain + " that '" + branch_ + "' could begin with");
      if (repository_.create_branch(work_, main->second))
        refs_.branches[work_] = main->second;
      else
        refs_ = repository_.refs();
    }
    parent_ = refs_.branches[work_];
    if (parent_.empty()) refuse_race("its branch " + work_ + " appeared and disappeared");
  }

  // Returns whether the commit holds these files with these bytes, and nothing else except the repository's own files.
  // If the package to publish has no signature, the commit may have one.
  bool is_whole(const net::HubTree& tree) const {
    std::set<std::string> wanted = kKept;
    wanted.insert(kSignatureFile);
    for (const PackagedFile& file : files_) {
      wanted.insert(file.path);
      const auto there = tree.find(file.path);
      if (there == tree.end()) return false;
      const std::string& digest = there->second.digest;
      if (is_sha256_hex(digest)
              ? digest != file.sha256
              : file.size > kMaxManifest || digest != git_blob_id(read_file(root_ / file.path, kMaxManifest)))
        return false;
    }
    return std::all_of(tree.begin(), tree.end(), [&](const auto& entry) { return wanted.count(entry.first) != 0; });
  }

  // Chooses the files to upload with LFS: those that the hub assigns to LFS and those too large for the body of a
  // commit. Empty files are never chosen, because LFS does not support them.
  void choose_large() {
    std::map<std::string, net::HubRepository::Sample> samples;
    for (const PackagedFile& file : files_) {
      std::string begin(std::min<uint64_t>(file.size, 512), '\0');
      InputFile(root_ / file.path, ErrorKind::kData).read(0, std::as_writable_bytes(std::span(begin)));
      samples[file.path] = {file.size, begin};
    }
    const std::set<std::string> asked = repository_.large_files(work_, samples);
    uint64_t sum = 0;
    for (const PackagedFile& file : files_) {
      if (file.size > 0 && (asked.count(file.path) || file.size > kMaxRegular || sum + file.size > kMaxRegularSum))
        large_.insert(file.path);
      else
        sum += file.size;
    }
  }

  HubName hub_;
  net::HubOptions options_;
  net::HubRepository repository_;
  std::string branch_ = kMain, why_, commit_;
  bool make_public_ = false, has_branch_ = false;
  std::optional<bool> is_private_;
  fs::path root_;
  std::vector<PackagedFile> files_;
  std::string digest_, before_;  // before_: digest of the package to which the channel pointed before
  net::HubRefs refs_;
  Tag tag_ = Tag::kNone;
  std::string work_, parent_;  // work_: the branch that receives the commit; parent_: that branch's head before it
  net::HubTree parent_tree_;
  std::set<std::string> large_;
  std::optional<net::HubUpload> upload_;
  net::HubChange change_;
};

class HubStore final : public PackageStore {
 public:
  const char* scheme() const override { return "hf://"; }
  TransferOutcome push(const PackageTransfer& t, const ProgressFn& progress) const override {
    HubPackage hub(t);
    TransferOutcome out{upload_package(t.package, hub, t.understood, progress)};
    out.change = hub.settle();
    out.commit = hub.commit();
    out.package.path = hub.name();
    return out;
  }

  // Pulls "hf://org/name", optionally with ":CHANNEL" (default main) or ":sha256-<64 digits>".
  PackageOutcome pull(const PackageTransfer& t, const ProgressFn& progress) const override {
    const size_t colon = t.package.find(':', std::string_view("hf://").size());
    const std::string name = colon == std::string::npos ? kMain : t.package.substr(colon + 1);
    const bool by_digest = name.starts_with(kTagPrefix);
    if (by_digest && !is_sha256_hex(name.substr(kTagPrefix.size())))
      throw Error(ErrorKind::kUsage, t.package.substr(0, 300) + ": expected all 64 digits of the package's digest");
    if (!by_digest) require_branch_name(name);
    HubPackage hub(t.package.substr(0, colon), Access::kRead);
    hub.select(name);
    return transfer_package(hub, t.store, by_digest ? name.substr(kTagPrefix.size()) : "", progress);
  }
};

}  // namespace

const PackageStore& hub_store() {
  static const HubStore store;
  return store;
}

}  // namespace specdec::deploy
