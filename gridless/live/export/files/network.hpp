// The network as a C++ object, shaped like the callback of a ROS 2 component: packets of events in, predictions out.
//
//     class Classifier : public rclcpp::Node {
//       net::Stream stream_{[this](std::int64_t time, const float *logits) { publish(time, logits); }};
//       void on_events(const EventPacket &message) { stream_.push(decoded(message)); }
//     };
//
// Needs exceptions: without them, call the functions of network.h.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "network.h"

namespace net {

class Stream {
public:
    using Logits = std::array<float, NET_CLASSES>;
    using Callback = std::function<void(std::int64_t time, const float *logits)>;

    explicit Stream(Callback on_prediction = {}) : state_(new net_state), call_(std::move(on_prediction)) { reset(); }

    void reset() { net_reset(state_.get()); }

    // Throws std::invalid_argument for a bad event, and is then as it was. What the callback throws is thrown when all
    // events have been taken; it is told no more of them.
    void push(const net_event *events, std::size_t n) {
        check(net_push(state_.get(), events, n, call_ ? &Stream::tell : nullptr, this));
    }
    void push(const net_packed *events, std::size_t n) {
        check(net_push_packed(state_.get(), events, n, call_ ? &Stream::tell : nullptr, this));
    }
    template <class Events> void push(const Events &events) { push(events.data(), events.size()); }

    Logits predict() const {
        Logits logits;
        net_predict(state_.get(), logits.data());
        return logits;
    }

    std::vector<unsigned char> save() const {
        const auto *bytes = reinterpret_cast<const unsigned char *>(state_.get());
        return {bytes, bytes + net_bytes()};
    }
    void restore(const std::vector<unsigned char> &bytes) {
        if (bytes.size() != net_bytes()) throw std::invalid_argument("this state is of another network");
        std::memcpy(state_.get(), bytes.data(), bytes.size());
    }

private:
    static void tell(void *user, std::int64_t time, const float *logits) {
        auto &stream = *static_cast<Stream *>(user);
        if (stream.thrown_) return;
        try {
            stream.call_(time, logits);
        } catch (...) {
            stream.thrown_ = std::current_exception();
        }
    }
    void check(int result) {
        if (thrown_) {
            auto thrown = thrown_;
            thrown_ = nullptr;
            std::rethrow_exception(thrown);
        }
        if (result < 0) throw std::invalid_argument("this state is of another network");
        if (result > 0)
            throw std::invalid_argument("event " + std::to_string(result - 1) +
                                        " is outside the sensor, or before the last one or time 0; the packet was not"
                                        " taken");
    }

    std::unique_ptr<net_state> state_;
    Callback call_;
    std::exception_ptr thrown_;
};

}  // namespace net
