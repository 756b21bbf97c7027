//! A client of `/ws`, which knows nothing of ours.

use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use crate::rig::BOUND;
use crate::support::Gateway;

/// What a client was sent.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Sent {
    Text(Value),
    Binary(Vec<u8>),
    Closed(Option<u16>),
}

pub(crate) struct Peer {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
}

impl Peer {
    pub(crate) async fn connect(gateway: &Gateway, client: &str) -> Self {
        Self::open(gateway, &format!("/ws?clientId={client}")).await
    }

    pub(crate) async fn open(gateway: &Gateway, path: &str) -> Self {
        let url = format!("{}{path}", gateway.url.replacen("http", "ws", 1));
        let (socket, _) = tokio_tungstenite::connect_async(url).await.expect("a websocket");
        Self { socket }
    }

    pub(crate) async fn say(&mut self, text: &str) {
        self.socket.send(Message::text(text)).await.unwrap();
    }

    /// Says that it understands labelled pictures; what it is answered.
    pub(crate) async fn introduce(&mut self) -> Value {
        self.say(r#"{"type": "feature_flags", "data": {"supports_preview_metadata": true}}"#).await;
        self.until("feature_flags").await.pop().unwrap()
    }

    pub(crate) async fn ping(&mut self) {
        self.socket.send(Message::Ping("x".into())).await.unwrap();
        let answer = async {
            loop {
                if let Message::Pong(data) = self.socket.next().await.unwrap().unwrap() {
                    return data;
                }
            }
        };
        assert_eq!(tokio::time::timeout(BOUND, answer).await.expect("an answer"), "x");
    }

    /// Leaves as one should.
    pub(crate) async fn leave(mut self) {
        self.socket.close(None).await.unwrap();
        while let Some(Ok(_)) = self.socket.next().await {}
    }

    pub(crate) async fn next(&mut self) -> Sent {
        self.next_within(BOUND).await.expect("something is sent in time")
    }

    pub(crate) async fn next_within(&mut self, bound: Duration) -> Option<Sent> {
        let next = async {
            loop {
                match self.socket.next().await {
                    Some(Ok(Message::Text(text))) => {
                        let text = serde_json::from_str(&text);
                        return Sent::Text(text.expect("JSON"));
                    }
                    Some(Ok(Message::Binary(bytes))) => return Sent::Binary(bytes.to_vec()),
                    Some(Ok(Message::Close(close))) => {
                        return Sent::Closed(close.map(|close| close.code.into()));
                    }
                    Some(Ok(_)) => {}
                    Some(Err(_)) | None => return Sent::Closed(None),
                }
            }
        };
        tokio::time::timeout(bound, next).await.ok()
    }

    /// The next binary message. Numbers of prompts may be told before it, and nothing else.
    pub(crate) async fn binary(&mut self) -> Vec<u8> {
        loop {
            match self.next().await {
                Sent::Binary(bytes) => return bytes,
                Sent::Text(text) if text["type"] == "status" => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// The next text.
    pub(crate) async fn text(&mut self) -> Value {
        loop {
            match self.next().await {
                Sent::Text(text) => return text,
                Sent::Binary(_) => {}
                Sent::Closed(code) => panic!("closed with {code:?}"),
            }
        }
    }

    /// All texts up to one of this type.
    pub(crate) async fn until(&mut self, kind: &str) -> Vec<Value> {
        self.until_some(|text| text["type"] == kind).await
    }

    /// All texts up to the end of a prompt.
    pub(crate) async fn end_of(&mut self, prompt: &str) -> Vec<Value> {
        let end = json!({"type": "executing", "data": {"node": null, "prompt_id": prompt}});
        self.until_some(|text| *text == end).await
    }

    pub(crate) async fn until_some(&mut self, is: impl Fn(&Value) -> bool) -> Vec<Value> {
        let mut texts = Vec::new();
        loop {
            let text = self.text().await;
            let last = is(&text);
            texts.push(text);
            if last {
                return texts;
            }
        }
    }
}

/// What was told, without numbers of prompts that were told already: whoever looks may say them again.
pub(crate) fn news(texts: &[Value]) -> Vec<&Value> {
    let mut last = None;
    let is_news = |text: &&Value| {
        let number = remaining(text);
        number.is_none() || std::mem::replace(&mut last, number) != number
    };
    texts.iter().filter(is_news).collect()
}

pub(crate) fn kinds(texts: &[Value]) -> Vec<&str> {
    texts.iter().map(|text| text["type"].as_str().expect("a type")).collect()
}

/// How many of its prompts have not ended.
pub(crate) fn remaining(text: &Value) -> Option<i64> {
    text["data"]["status"]["exec_info"]["queue_remaining"].as_i64()
}
