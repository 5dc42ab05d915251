#include "deploy/serve/generation.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

namespace specdec::deploy {

namespace {

class Generation final : public Exchange {
 public:
  explicit Generation(GenerationReply reply)
      : reply_(std::move(reply)),
        frame_(reply_.frame),
        stream_(reply_.stream),
        answers_(reply_.request->choices()),
        begun_(answers_.size(), false),
        calls_(answers_.size(), false),
        channel_(reply_.request->channel) {
    if (const auto& format = reply_.request->format)
      for (size_t i = 0; i < answers_.size(); ++i) parsers_.emplace_back(format);
  }
  ~Generation() override {
    channel_->on_event({});
    channel_->cancel();
    // The request is answered. Its bytes are released now, because its record may still wait for a slow disk and would
    // otherwise keep them from other requests.
    if (reply_.request->held) (void)reply_.request->held->resize(0);
  }

  void on_wake(std::function<void()> wake) override { channel_->on_event(std::move(wake)); }
  void abandon() override { channel_->cancel(); }

  Turn next() override {
    if (ended_) return {Turn::Kind::kEnd, {}, {}};
    std::string data;
    for (ChoiceEvent& event : merge(channel_->take())) {
      if (event.result && event.result->reason != FinishReason::kStop && event.result->reason != FinishReason::kLength)
        return fail(event.result->reason, std::move(data));
      collect(event);
      if (!stream_ && !within_bounds()) return too_long();
      if (stream_) data += events(event);
    }
    const bool complete =
        std::all_of(answers_.begin(), answers_.end(), [](const Answer& a) { return a.result.has_value(); });
    if (complete && !stream_)
      return {Turn::Kind::kReply, {200, "application/json", full_reply(frame_, std::move(answers_)), {}}, {}};
    if (complete) {
      ended_ = true;
      data += usage_event(frame_, answers_) + done_event();
    }
    if (data.empty()) return {};
    sent_ = true;
    return {Turn::Kind::kData, {}, std::move(data)};
  }

 private:
  // Merges the events to one per choice, so that a slow client gets fewer, longer pieces.
  static std::vector<ChoiceEvent> merge(std::vector<ChoiceEvent> events) {
    std::vector<ChoiceEvent> merged;
    for (ChoiceEvent& event : events) {
      const auto same =
          std::find_if(merged.begin(), merged.end(), [&](const ChoiceEvent& m) { return m.choice == event.choice; });
      if (same == merged.end()) {
        merged.push_back(std::move(event));
        continue;
      }
      same->text += event.text;
      same->token_ids.insert(same->token_ids.end(), event.token_ids.begin(), event.token_ids.end());
      std::move(event.logprobs.begin(), event.logprobs.end(), std::back_inserter(same->logprobs));
      if (event.result) same->result = std::move(event.result);
    }
    return merged;
  }

  // Adds the event to its answer. For a stream the answer holds only the next piece.
  void collect(const ChoiceEvent& event) {
    Answer& answer = answers_[event.choice];
    if (stream_) {
      for (const TokenEntry& entry : answer.logprobs) answer.logprobs_offset += entry.characters;
      answer.text = {};
      answer.token_ids.clear();
      answer.logprobs.clear();
    }
    const AnswerPiece piece = split(event);
    calls_[event.choice] = calls_[event.choice] || !piece.calls.empty();
    answer.text.append(piece);
    answer.token_ids.insert(answer.token_ids.end(), event.token_ids.begin(), event.token_ids.end());
    for (const decode::PositionLogprobs& position : event.logprobs) {
      answer.logprobs.push_back(entry_of(position));
      if (!stream_) write(answer);
    }
    answer.result = event.result;
    if (!stream_) bytes_ += piece.bytes() + event.token_ids.size() * sizeof(int32_t);
  }

  AnswerPiece split(const ChoiceEvent& event) {
    if (parsers_.empty()) return {event.text, {}, {}};
    AnswerPiece piece = parsers_[event.choice].push(event.text);
    if (event.result) piece.append(parsers_[event.choice].finish());
    return piece;
  }

  // Converts the log-probabilities of a reply that is not streamed to the text in which the reply will contain them.
  void write(Answer& answer) {
    bytes_ -= answer.written.bytes();
    answer.written.add(frame_, answer.logprobs, answer.logprobs_offset);
    bytes_ += answer.written.bytes();
    for (const TokenEntry& entry : answer.logprobs) answer.logprobs_offset += entry.characters;
    answer.logprobs.clear();
  }

  // The bytes held since admission are an estimate. Long tokens may exceed it, so the real bytes are counted here.
  bool within_bounds() {
    if (bytes_ > reply_.reply_bytes) return false;
    const auto& held = reply_.request->held;
    return !held || bytes_ <= held->bytes() || held->resize(std::min(2 * bytes_, reply_.reply_bytes));
  }

  Turn too_long() {
    channel_->cancel();
    const ApiError error =
        bytes_ > reply_.reply_bytes
            ? invalid_parameter(reply_.max_tokens_param, "fewer tokens: the reply would be longer than " +
                                                             std::to_string(reply_.reply_bytes) + " bytes")
            : too_many_bytes();
    return {Turn::Kind::kReply, error_reply(error, reply_.request->id), {}};
  }

  const std::string& bytes_of(int32_t id) const { return reply_.token_bytes->tokens[static_cast<size_t>(id)]; }

  // Returns what stands for a token in a list of log-probabilities.
  std::string shown(int32_t id) const { return frame_.tokens_as_ids ? "token_id:" + std::to_string(id) : bytes_of(id); }

  TokenEntry entry_of(const decode::PositionLogprobs& position) const {
    TokenEntry entry;
    entry.bytes = shown(position.token.id);
    const bool special =
        std::binary_search(reply_.token_bytes->special.begin(), reply_.token_bytes->special.end(), position.token.id);
    entry.characters = special ? 0 : characters(bytes_of(position.token.id));
    if (!std::isnan(position.token.logprob)) entry.logprob = position.token.logprob;
    for (const decode::TokenLogprob& t : position.top) entry.top.emplace_back(shown(t.id), t.logprob);
    return entry;
  }

  std::string events(const ChoiceEvent& event) {
    std::string data;
    if (!begun_[event.choice]) data += first_event(frame_, event.choice);
    begun_[event.choice] = true;
    data += delta_event(frame_, event.choice, answers_[event.choice]);
    if (event.result) data += finish_event(frame_, event.choice, event.result->reason, calls_[event.choice]);
    return data;
  }

  // Ends the request with an error: an HTTP status before the first byte, an event in the stream afterwards.
  Turn fail(FinishReason reason, std::string data) {
    channel_->cancel();
    const ApiError error = reason == FinishReason::kDrained       ? draining()
                           : reason == FinishReason::kNoTokenLeft ? no_token_left()
                           : reason == FinishReason::kMasksSpent  ? masks_spent()
                           : reason == FinishReason::kNoRoom      ? no_room()
                                                                  : internal_error();
    if (!sent_) return {Turn::Kind::kReply, error_reply(error, reply_.request->id), {}};
    ended_ = true;
    return {Turn::Kind::kData, {}, data + error_event(error, reply_.request->id) + done_event()};
  }

  const GenerationReply reply_;
  const ReplyFrame& frame_;
  const bool stream_;
  std::vector<Answer> answers_;
  std::vector<bool> begun_;
  std::vector<bool> calls_;            // by answer: it has called a function
  std::vector<AnswerParser> parsers_;  // by answer; empty: all text is content
  std::shared_ptr<Channel> channel_;
  size_t bytes_ = 0;  // of a reply that is not streamed, so far
  bool sent_ = false, ended_ = false;
};

}  // namespace

std::shared_ptr<Exchange> make_generation(GenerationReply reply) {
  return std::make_shared<Generation>(std::move(reply));
}

}  // namespace specdec::deploy
