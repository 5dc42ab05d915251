// A step runner without a model, and other helpers that the tests of serve share.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/device_lost.h"
#include "base/error.h"
#include "base/json.h"
#include "base/philox.h"
#include "deploy/serve/queue/step_runner.h"
#include "tests/base/scratch.h"
#include "tests/text/byte_tokenizer.h"
#include "text/tokenizer.h"

namespace specdec::deploy {

using testing::byte_tokenizer;
using testing::kBos;
using testing::kEos;
using testing::kVocab;
using testing::Scratch;
using testing::space_stripping_tokenizer;

// Makes answers that depend only on prompt, seed and temperature. The prompt may contain a command:
// - "say:X": the answer is X (up to the character 0x1F, if X has one) and EOS;
// - "loop": the answer is an endless series of 'x';
// - "die:start", "die:step": start() or step() fails;
// - "die:device", "die:pass": start() or step() fails because of the device;
// - "masked": the grammar mask is late while set_late(true) applies.
// A prompt without "say:" or "loop" is answered with random letters drawn from seed and prompt (at temperature 0 from
// the prompt alone).
class FakeRunner final : public StepRunner {
 public:
  SequenceKey start(const SequenceSpec& spec) override {
    wait_for_gate();
    const std::string prompt = bytes(spec.request.prompt);
    if (prompt.find("die:start") != std::string::npos)
      throw Error(ErrorKind::kInternal, "out of luck at 0xdeadbeef in /home/secret/model");
    if (prompt.find("die:device") != std::string::npos)
      throw Error(ErrorKind::kDevice, "out of memory at 0xdeadbeef in /home/secret/model");
    Running r;
    r.prompt = r.unread = static_cast<int64_t>(spec.request.prompt.size()) - 1;
    if (has(spec.same_prompt)) r.unread = 0;
    r.pass_dies = prompt.find("die:pass") != std::string::npos;
    r.dies = r.pass_dies || prompt.find("die:step") != std::string::npos;
    r.scored = spec.request.options.logprobs >= 0;
    r.endless = prompt.find("loop") != std::string::npos;
    r.masked = prompt.find("masked") != std::string::npos;
    if (const size_t at = prompt.find("say:"); at != std::string::npos) {
      for (const char c : prompt.substr(at + 4, prompt.find('\x1f', at) - (at + 4)))
        r.answer.push_back(c == kMarker ? kVocab : static_cast<unsigned char>(c));
    } else {
      uint64_t key = spec.request.seed;
      if (spec.request.options.sampling.greedy()) key = 0;
      for (const char c : prompt) key = key * 1099511628211ull + static_cast<unsigned char>(c);
      const uint64_t length = 3 + static_cast<uint64_t>(philox_uniform(key, 0, 0) * 40);
      for (uint64_t i = 1; i <= length; ++i)
        r.answer.push_back('a' + static_cast<int32_t>(philox_uniform(key, 0, i) * 26));
    }
    r.answer.push_back(kEos);
    r.stride = spec.request.seed;
    const std::lock_guard lock(mutex_);
    tenants_.push_back(spec.request.options.tenant);
    overtaken_ +=
        std::any_of(running_.begin(), running_.end(), [](const auto& other) { return other.second.preempted; });
    running_.emplace(next_, std::move(r));
    ++started_;
    return next_++;
  }

  bool ready(SequenceKey key) override {
    const std::lock_guard lock(mutex_);
    return !late_ || !running_.at(key).masked;
  }

  PrefillResult prefill(SequenceKey key, int64_t most) override {
    const std::lock_guard lock(mutex_);
    Running& r = running_.at(key);
    const int64_t tokens = std::min(most, r.unread);
    if (held_ + tokens > room_) throw decode::CacheFull("full");
    hold(r, tokens);
    if (r.again) reread_ += tokens;
    r.preempted = false;
    r.unread -= tokens;
    read_ += tokens;
    return {tokens, r.unread == 0, {}};
  }

  void preempt(SequenceKey key) override {
    const std::lock_guard lock(mutex_);
    Running& r = running_.at(key);
    r.unread = r.prompt + static_cast<int64_t>(r.at);
    hold(r, -r.held);
    r.preempted = r.again = true;
    ++preempted_;
  }

  void step(std::span<const SequenceKey> batch, std::span<StepResult> results) override {
    wait_for_gate();
    const std::lock_guard lock(mutex_);
    largest_batch_ = std::max(largest_batch_, batch.size());
    ++steps_;
    most_read_ = std::max(most_read_, std::exchange(read_, 0));
    if (lose_device_) throw DeviceLost("an illegal memory access was encountered");
    if (throw_in_step_) throw Error(ErrorKind::kInternal, "the whole step failed at 0xdeadbeef");
    const bool room = held_ + 4 * static_cast<int64_t>(batch.size()) <= room_;
    for (size_t i = 0; i < batch.size(); ++i) {
      results[i].cache_full = !room;
      if (room) step_one(running_.at(batch[i]), results[i]);
    }
  }

  void finish(SequenceKey key) override {
    const std::lock_guard lock(mutex_);
    if (!running_.contains(key)) throw Error(ErrorKind::kInternal, "finished twice");
    held_ -= running_.at(key).held;
    running_.erase(key);
    ++finished_;
  }

  StageSeconds stage_seconds() const override { return {}; }

  // While the gate is closed, start() and step() block.
  void close_gate() { set_gate(false); }
  void open_gate() { set_gate(true); }
  bool at_gate() const { return locked(at_gate_); }
  void set_late(bool late) {
    const std::lock_guard lock(mutex_);
    late_ = late;
  }
  void lose_device() {
    const std::lock_guard lock(mutex_);
    lose_device_ = true;
  }
  void throw_in_step(bool on) {
    const std::lock_guard lock(mutex_);
    throw_in_step_ = on;
  }
  size_t largest_batch() const { return locked(largest_batch_); }
  size_t steps() const { return locked(steps_); }
  // Sets the number of tokens that fit into the caches of all sequences together.
  void limit_room(int64_t tokens) {
    const std::lock_guard lock(mutex_);
    room_ = tokens;
  }
  size_t overtaken() const { return locked(overtaken_); }  // sequences started while a preempted one was waiting
  int64_t reread() const { return locked(reread_); }
  size_t started() const { return locked(started_); }
  // Returns the tenants of the started sequences in order of start.
  std::vector<uint64_t> tenants() const {
    const std::lock_guard lock(mutex_);
    return tenants_;
  }
  size_t preempted() const { return locked(preempted_); }
  // Returns the largest number of prompt tokens that were prefilled between two steps.
  int64_t most_read() const { return locked(most_read_); }
  size_t finished() const { return locked(finished_); }
  size_t open() const {
    const std::lock_guard lock(mutex_);
    return running_.size();
  }

 private:
  bool has(SequenceKey key) const {
    const std::lock_guard lock(mutex_);
    return running_.contains(key);
  }
  struct Running {
    std::vector<int32_t> answer;
    size_t at = 0;
    int64_t prompt = 0, unread = 0, held = 0;
    uint64_t stride = 0;
    bool dies = false, pass_dies = false, endless = false, masked = false, preempted = false, again = false;
    bool scored = false;
  };
  std::vector<uint64_t> tenants_;

  static constexpr char kMarker = '\x7f';  // stands for token kVocab, which some tests add
  static std::string bytes(std::span<const int32_t> ids) {
    std::string s;
    for (const int32_t id : ids)
      if (id < 256 || id >= kVocab) s.push_back(id < 256 ? static_cast<char>(id) : kMarker);
    return s;
  }

  // Emits one token more than it reports as accepted (0 to 3). After the end of the answer it emits 'x'.
  void step_one(Running& r, StepResult& result) {
    if (r.unread > 0) throw Error(ErrorKind::kInternal, "a step before the prompt was read");
    if (r.dies) {
      result.failed = true;
      result.device_failed = r.pass_dies;
      return;
    }
    result.drafted = static_cast<int>((r.stride + r.at) % 4);
    result.accepted =
        result.drafted > 0 ? static_cast<int>((r.stride + r.at) % (static_cast<size_t>(result.drafted) + 1)) : 0;
    hold(r, result.accepted + 1);
    for (int i = 0; i <= result.accepted; ++i, ++r.at)
      result.emitted.push_back(r.endless || r.at >= r.answer.size() ? 'x' : r.answer[r.at]);
    for (const int32_t token : result.emitted)
      if (r.scored) result.logprobs.push_back({{token, -1.f}, {}});
    result.overlaps.assign(static_cast<size_t>(std::min(result.accepted + 1, result.drafted)), 0.5);
  }

  void hold(Running& r, int64_t tokens) {
    r.held += tokens;
    held_ += tokens;
  }

  void wait_for_gate() {
    std::unique_lock lock(mutex_);
    at_gate_ = true;
    opened_.wait(lock, [this] { return gate_open_; });
    at_gate_ = false;
  }
  void set_gate(bool open) {
    const std::lock_guard lock(mutex_);
    gate_open_ = open;
    opened_.notify_all();
  }
  template <class T>
  T locked(const T& value) const {
    const std::lock_guard lock(mutex_);
    return value;
  }

  mutable std::mutex mutex_;
  std::condition_variable opened_;
  bool gate_open_ = true, at_gate_ = false, late_ = false, throw_in_step_ = false, lose_device_ = false;
  std::map<SequenceKey, Running> running_;
  SequenceKey next_ = 0;
  size_t largest_batch_ = 0, steps_ = 0, finished_ = 0, preempted_ = 0, started_ = 0, overtaken_ = 0;
  int64_t read_ = 0, reread_ = 0, most_read_ = 0, held_ = 0, room_ = int64_t{1} << 60;
};

}  // namespace specdec::deploy
